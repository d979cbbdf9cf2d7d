// What the report and the site share: elements, tables that sort and filter, and charts that can be copied.
"use strict";

/** Return an element. Text becomes text nodes, so no markup can come out of data. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a colour of the page by its name, for what knows no CSS. */
function colour(name) {
  const probe = document.body.appendChild(make("i", { style: `color: var(--${name})` }));
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** Return whether a text has all words of a filter. A setting such as streams=4 is not part of streams=48. */
function matches(text, filter) {
  const parts = text.toLowerCase().split(/[\s:,]+/), wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return wanted.every((word) => parts.some((part) => /=./.test(word) ? part === word : part.includes(word)));
}

/** Let a table sort by its heads, and filter it where it is long. The filter is in the address of the page.
 * A cell may have another value than its text. Rows sort within the groups of the column `data-within`. */
function sortable(table, { most = Infinity, filtered = () => {} } = {}) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  const address = new URL(location.href), asked = address.searchParams.get("filter") ?? "", count = make("span", { className: "muted small" });
  const filter = make("input", { type: "search", placeholder: "filter, such as 'streams=4 worse'", ariaLabel: "filter the rows", value: asked });
  const more = make("button", { type: "button" }, "Show all");
  let sorted = rows, limit = most;
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
    return heads[column].className === "n" ? parseFloat(text) : text;
  };
  const group = (row) => row.cells[table.dataset.within]?.firstChild.textContent;
  const groups = [...new Set(rows.map(group))];
  const draw = () => {
    const kept = sorted.filter((row) => matches([...row.cells].map((cell) => `${cell.textContent} ${cell.dataset.value ?? ""}`).join(" "), filter.value));
    const visible = kept.slice(0, limit);
    body.replaceChildren(...visible);
    // A point is named once above its values.
    kept.forEach(({ cells: [first] }, i) => first.classList.toggle("again", first.textContent === kept[i - 1]?.cells[0].textContent));
    count.textContent = kept.length === rows.length ? `${rows.length} rows` : `${kept.length} of ${rows.length} rows`;
    more.hidden = kept.length <= limit;
    filtered(kept, visible);
  };
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", title: `sort by ${head.textContent}` }, head.textContent);
    button.onclick = () => {
      const down = head.ariaSort === "ascending";
      const compare = (a, b) => typeof a === "number" ? (isNaN(a) - isNaN(b)) || (down ? b - a : a - b) : (down ? -1 : 1) * a.localeCompare(b, undefined, { numeric: true });
      heads.forEach((other) => { other.ariaSort = "none"; });
      head.ariaSort = down ? "descending" : "ascending";
      sorted = [...rows].sort((a, b) => groups.indexOf(group(a)) - groups.indexOf(group(b)) || compare(value(a, column), value(b, column)));
      draw();
    };
    head.replaceChildren(button);
  });
  filter.oninput = () => {
    address.searchParams.set("filter", filter.value);
    history.replaceState(null, "", address);
    draw();
  };
  more.onclick = () => { limit = Infinity; draw(); };
  if (rows.length > 8 || asked) table.parentElement.before(make("div", { className: "controls" }, filter, count));
  table.parentElement.after(more);
  draw();
}

/** Return a button that copies what `content` returns by its kind: image/png or text/plain. */
function copyButton(name, kind, content) {
  const button = make("button", { type: "button" }, `copy as ${name}`), text = button.textContent;
  button.onclick = async () => {
    await navigator.clipboard.write([new ClipboardItem({ [kind]: content() })]);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = text; }, 1500);
  };
  return button;
}

/** Return a chart as a PNG in the colours of the page. */
async function pngOf(figure) {
  let image = figure.querySelector("img");
  if (!image) {
    const svg = figure.querySelector("svg"), { width, height } = svg.viewBox.baseVal;
    const text = new XMLSerializer().serializeToString(svg).replace(/var\(--([\w-]+)\)/g, (_, name) => colour(name));
    image = make("img", { src: `data:image/svg+xml,${encodeURIComponent(text.replace("<svg ", `<svg width="${2 * width}" height="${2 * height}" `))}` });
    await image.decode();
  }
  const canvas = make("canvas", { width: image.naturalWidth, height: image.naturalHeight }), pen = canvas.getContext("2d");
  pen.fillStyle = colour("paper");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done));
}
