// Return what is wrong with the texts of the charts of a page, one line for each fault.
(() => {
  const faults = [], rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (colour) => colour.slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paint = (element) => {
    const style = getComputedStyle(element);
    if (!["path", "use", "rect", "polygon"].includes(element.tagName) || !/^rgb/.test(style.fill)) return null;
    const [r, g, b, a = 1] = rgb(style.fill);
    return [r, g, b, a * parseFloat(style.fillOpacity) * parseFloat(style.opacity)];
  };
  // What the page shows behind a point: the fills below it, blended from the paper up.
  const behind = (x, y, text) => {
    const stack = document.elementsFromPoint(x, y), below = stack.slice(stack.indexOf(text) + 1).filter((e) => e.tagName !== "text").map(paint).filter(Boolean);
    return below.reverse().reduce((under, over) => under.map((c, i) => c + (over[i] - c) * over[3]), rgb(getComputedStyle(document.body).backgroundColor).slice(0, 3));
  };
  for (const svg of document.querySelectorAll("figure svg")) {
    const name = svg.closest("section").id, frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = texts.flatMap((text) => {
      const parts = text.querySelectorAll("tspan").length ? [...text.querySelectorAll("tspan")] : [text];
      return parts.map((part) => {
        const box = part.getBoundingClientRect(), flat = box.width >= box.height;
        // The box of a line is higher than its letters.
        const trim = (flat ? box.height : box.width) * 0.2;
        return { text: part.textContent, of: text, left: box.left + (flat ? 1 : trim), right: box.right - (flat ? 1 : trim), top: box.top + (flat ? trim : 1), bottom: box.bottom - (flat ? trim : 1) };
      });
    });
    for (const box of boxes) {
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) faults.push(`${name}: cut off: ${box.text}`);
    }
    boxes.forEach((a, i) => boxes.slice(0, i).forEach((b) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) faults.push(`${name}: overlap: ${b.text} | ${a.text}`);
    }));
    for (const box of boxes) {
      box.of.scrollIntoView({ block: "center" });
      const at = box.of.getBoundingClientRect(), under = behind((at.left + at.right) / 2, (at.top + at.bottom) / 2, box.of);
      const [a, b] = [light(rgb(getComputedStyle(box.of).fill)), light(under)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) faults.push(`${name}: contrast ${ratio.toFixed(1)}: ${box.text}`);
    }
  }
  return faults;
})()
