// Tables that sort by a click on a heading.

// columns: [{ name, number, digits, long, value(row), cell(row, td), title(row) }]: ``value`` sorts, numbers with the largest first,
// and is shown unless ``cell`` fills the cell; ``digits`` after the point are those of its numbers; ``long`` text gets room;
// ``title`` is shown on hover.
function fillTable(table, columns, rows) {
  const head = table.createTHead().insertRow(), body = table.createTBody();
  const state = { by: null, down: true };
  const lines = rows.map((row, index) => {
    const line = body.insertRow();
    line.dataset.row = index;
    for (const column of columns) {
      const cell = line.insertCell();
      if (column.cell) column.cell(row, cell);
      else cell.textContent = shown(column.value(row), column.digits);
      if (column.number || column.long) cell.className = column.number ? "number" : "long";
      if (column.title) cell.title = column.title(row);
    }
    return { line, row };
  });
  columns.forEach((column) => {
    const heading = document.createElement("th"), button = add(heading, "button", column.name);
    heading.scope = "col";
    if (column.number) heading.className = "number";
    button.type = "button";
    button.onclick = () => {
      state.down = state.by === column ? !state.down : Boolean(column.number);
      state.by = column;
      for (const other of head.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      lines.sort((a, b) => compare(column.value(a.row), column.value(b.row), state.down));
      body.append(...lines.map(({ line }) => line));
    };
    head.append(heading);
  });
  return lines;
}

// Missing values come last, whichever the order.
function compare(a, b, down) {
  const missing = [a, b].map((value) => value === null || value === undefined || value === "");
  if (missing[0] || missing[1]) return missing[0] - missing[1];
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -order : order;
}

function shown(value, digits) {
  if (value === null || value === undefined) return "–";
  if (digits !== undefined) return value.toFixed(digits);
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return value.toFixed(Math.abs(value) < 10 ? 2 : 1);
}
