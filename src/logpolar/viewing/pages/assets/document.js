// Sections of notes, tables that sort, and pictures. The row under the pointer or in focus says where it comes from.

const FIGURE = /^[-+−]?[\d.]+/;

// Cells are text; those that begin with a number sort by it.
function cellValue(text) {
  const found = FIGURE.exec(text);
  if (text === "" || text === "–") return null;
  return found && Number.isFinite(+found[0].replace("−", "-")) ? +found[0].replace("−", "-") : text;
}

function showHint(text) {
  element("hint").textContent = text;
  element("hint").hidden = !text;
}

function addTable(parent, { caption, columns, rows, hints }) {
  const box = add(parent, "div"), table = document.createElement("table");
  box.className = "scroll";
  table.className = "sortable";
  add(table, "caption", caption);
  box.append(table);
  const numeric = columns.map((_, n) => {
    const values = rows.map((row) => cellValue(row[n])).filter((value) => value !== null);
    return values.length > 0 && values.every((value) => typeof value === "number");
  });
  const described = columns.map((name, n) => ({
    name, number: numeric[n], value: (row) => (numeric[n] ? cellValue(row[n]) : row[n]), cell: (row, cell) => { cell.textContent = row[n]; },
  }));
  fillTable(table, described, rows).forEach(({ line }, index) => {
    if (!hints[index]) return;
    line.tabIndex = 0;
    line.title = hints[index];
    line.onmouseenter = line.onfocus = () => showHint(hints[index]);
    line.onmouseleave = line.onblur = () => showHint("");
  });
}

function addFigure(parent, { caption, picture }) {
  const figure = add(parent, "figure"), image = document.createElement("img");
  image.src = picture;
  image.alt = caption;
  figure.append(image);
  add(figure, "figcaption", caption);
}

// Where a link leads to must not lie behind the links, which stay at the top on a large screen.
function clearLinks() {
  const bar = element("contents"), sticks = getComputedStyle(bar).position === "sticky";
  document.documentElement.style.scrollPaddingTop = sticks ? `${bar.offsetHeight + 4}px` : "0";
}

function start() {
  element("title").textContent = document.title = data.title;
  element("intro").textContent = data.intro;
  data.sections.forEach((section, number) => {
    const place = add(element("sections"), "section"), link = add(element("contents"), "a", section.title);
    place.className = "wide-section";
    place.id = `section-${number}`;
    link.href = `#section-${number}`;
    add(place, "h2", section.title);
    for (const note of section.notes) add(place, "p", note);
    if (section.tables.length) {
      const tables = add(place, "div");
      tables.className = "tables";
      section.tables.forEach((table) => addTable(tables, table));
    }
    section.figures.forEach((figure) => addFigure(place, figure));
  });
  showFooter();
  clearLinks();
  window.addEventListener("resize", clearLinks);
  document.body.dataset.ready = "true";
}

start();
