// Return what is wrong with the texts of the charts of a page, one line for each fault.
(() => {
  const faults = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const name = svg.closest("section").id, frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
    for (const text of texts) {
      const size = parseFloat(getComputedStyle(text).fontSize) * text.getCTM().a;
      if (innerWidth < 600 && text.getCTM().b === 0 && size < 11) faults.push(`${name}: ${size.toFixed(1)} px: ${text.textContent}`);
    }
    const boxes = texts.flatMap((text) => {
      const parts = text.querySelectorAll("tspan").length ? [...text.querySelectorAll("tspan")] : [text];
      return parts.map((part) => {
        const box = part.getBoundingClientRect(), flat = box.width >= box.height;
        // The box of a line is higher than its letters.
        const trim = (flat ? box.height : box.width) * 0.2;
        return { text: part.textContent, left: box.left + (flat ? 1 : trim), right: box.right - (flat ? 1 : trim), top: box.top + (flat ? trim : 1), bottom: box.bottom - (flat ? trim : 1) };
      });
    });
    for (const box of boxes) {
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) faults.push(`${name}: cut off: ${box.text}`);
    }
    boxes.forEach((a, i) => boxes.slice(0, i).forEach((b) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) faults.push(`${name}: overlap: ${b.text} | ${a.text}`);
    }));
  }
  return faults;
})()
