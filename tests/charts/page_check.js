// Return what is wrong with the texts that a page shows, one line for each fault: too small (11 px), of too
// little contrast (4.5 : 1, WCAG 2.2, 1.4.3), cut off, or over each other.
(() => {
  const faults = new Set(), boxes = [], paper = matchMedia("print").matches, ON_CELLS = ["rgb(0, 0, 1)", "rgb(255, 255, 254)"];
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (colour) => rgb(colour).slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((rgb(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, element = node.parentElement, svg = element.closest("svg"), said = node.textContent.trim();
    if (!said || element.closest("script, style, title, option") || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const where = element.closest("section")?.id ?? "", style = getComputedStyle(element), matrix = element.closest("text")?.getCTM();
    const fault = (kind) => faults.add(`${where}: ${kind}: ${said.slice(0, 60)}`);
    const size = parseFloat(style.fontSize) * (matrix?.a ?? 1);
    if (size < 11 && (!svg || (innerWidth < 600 && matrix.b === 0))) fault(`${size.toFixed(1)} px`);
    const colour = svg ? style.fill : style.color, [a, b] = [light(colour), light(ground(element))];
    if (!ON_CELLS.includes(colour) && (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) fault(`contrast of ${colour}`);
    const frame = svg?.getBoundingClientRect() ?? { left: 0, right: innerWidth, top: -Infinity, bottom: Infinity };
    const range = document.createRange();
    range.selectNode(node);
    for (const box of svg ? [(element.closest("tspan") ?? element).getBoundingClientRect()] : range.getClientRects()) {
      const scrolls = !svg && !paper && element.closest(".scroll, figure, pre");
      if (!scrolls && (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)) fault("cut off");
      // The box of a line is higher than its letters.
      const flat = box.width >= box.height || !svg, trim = (flat ? box.height : box.width) * 0.2;
      boxes.push({ said, fault, left: box.left + (flat ? 1 : trim), right: box.right - (flat ? 1 : trim), top: box.top + (flat ? trim : 1), bottom: box.bottom - (flat ? trim : 1) });
    }
  }
  boxes.sort((a, b) => a.top - b.top).forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j++) {
      const b = boxes[j];
      if (a.left < b.right && b.left < a.right) a.fault(`over "${b.said.slice(0, 40)}"`);
    }
  });
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  return [...wide ? [`${wide} px wider than the window`] : [], ...faults];
})()
