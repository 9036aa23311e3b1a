// One match in detail: its patches, support regions, descriptors and candidates.

function showMatch(match) {
  element("number").textContent = `${matches[2 * match]} – ${matches[2 * match + 1]}`;
  const sizes = implied ? `both of size ${keypoint(0, match)[2].toFixed(1)} px, upright` : `size ${keypoint(0, match)[2].toFixed(1)} and ${keypoint(1, match)[2].toFixed(1)} px (${(2 ** octaves[match]).toFixed(2)}x), rotated by ${rotation[match].toFixed(0)} degrees`;
  const sure = confidence && confidence[match] > 0 ? `, confidence ${confidence[match].toFixed(2)}` : "";
  element("facts").textContent = `${data.stages[stage[match]]}; distance ${distance[match].toFixed(3)}, ratio ${ratio[match].toFixed(2)}${sure}; ${sizes}`;
  const [rows, columns] = data.patch_size, aligned = Boolean(data.polar) && element("align").checked;
  drawPolar(0, match, 0, 0);
  drawPolar(1, match, aligned ? roll[match] : 0, aligned ? shift[match] : 0);
  element("aligned").textContent = aligned ? " (aligned)" : "";
  const fit = `rolled by ${roll[match]} of ${rows} rows (${((360 * roll[match]) / rows).toFixed(0)} degrees), shifted by ${shift[match]} of ${columns} columns (${(columnRatio(1, match) ** shift[match]).toFixed(2)}x)`;
  element("alignment").textContent = data.polar ? `Best fit: ${fit}; correlation ${correlation[match].toFixed(2)}.` : "";
  drawSquare(0, match, 0, 1);
  drawSquare(1, match, aligned ? (360 * roll[match]) / rows : 0, aligned ? columnRatio(1, match) ** shift[match] : 1);
  drawBars(match);
  listCandidates(match);
}

// Rows are angles, columns radii: rows wrap around, columns do not.
function drawPolar(side, match, rolled, shifted) {
  const canvas = element(`polar${side}`), [rows, columns] = data.patch_size;
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d"), x = (match % data.atlas_columns) * columns, y = Math.floor(match / data.atlas_columns) * rows;
  context.fillRect(0, 0, columns, rows);
  const start = ((rolled % rows) + rows) % rows;
  const [from, to, width] = [Math.max(shifted, 0), Math.max(-shifted, 0), columns - Math.abs(shifted)];
  if (!state.atlases[side] || width <= 0) return;
  context.drawImage(state.atlases[side], x + from, y + start, width, rows - start, to, 0, width, rows - start);
  if (start) context.drawImage(state.atlases[side], x + from, y, width, start, to, rows - start, width, start);
}

// The ratio of the radii of neighbouring columns.
function columnRatio(side, match) {
  if (!data.polar) return 1;
  const radius = data.radius * keypoint(side, match)[2], { ratio: most, pixel_weight: weight } = data.polar;
  return (radius / (radius / most) ** (1 - weight)) ** (1 / data.patch_size[1]);
}

// The support region in the photo, upright to the keypoint's angle, rotated and enlarged as the alignment says.
function drawSquare(side, match, rotated, enlarged) {
  const canvas = element(`square${side}`), [x, y, size, angle] = keypoint(side, match), pixels = 160;
  [canvas.width, canvas.height] = [pixels, pixels];
  const context = canvas.getContext("2d"), photo = state.photos[side];
  context.fillStyle = colour("--stage");
  context.fillRect(0, 0, pixels, pixels);
  if (!photo) return;
  const radius = data.radius * size * enlarged, factor = pixels / (2 * radius), shrink = data.images[side].width / photo.naturalWidth;
  context.translate(pixels / 2, pixels / 2);
  context.rotate((-(angle + rotated) * Math.PI) / 180);
  context.scale(factor * shrink, factor * shrink);
  context.drawImage(photo, -(x + 0.5) / shrink, -(y + 0.5) / shrink);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.strokeStyle = shade(match);
  for (const part of [1, 1 / 8]) {
    context.beginPath();
    context.arc(pixels / 2, pixels / 2, (part * pixels) / 2 - 1, 0, 2 * Math.PI);
    context.stroke();
  }
}

function drawBars(match) {
  const { context, width, height } = fitCanvas(element("bars")), length = data.descriptors[0].shape[1];
  const [first, second] = descriptors.map((each) => [...each.subarray(match * length, (match + 1) * length)]);
  const rows = [["--accent", first], ["--weak", second], ["--soft", first.map((value, n) => second[n] - value)]];
  const most = Math.max(...rows.flatMap(([, values]) => values.map(Math.abs)), 1), room = height / rows.length, step = width / length;
  rows.forEach(([name, values], row) => {
    const middle = (row + 0.5) * room;
    context.fillStyle = colour("--line");
    context.fillRect(0, middle, width, 1);
    context.fillStyle = colour(name);
    values.forEach((value, n) => {
      const tall = (value / most) * (room / 2 - 2);
      context.fillRect(n * step, middle - Math.max(tall, 0), Math.max(0.75 * step, 0.5), Math.abs(tall));
    });
  });
}

function listCandidates(match) {
  const body = element("candidates");
  body.replaceChildren();
  for (let n = 0; n < per; n++) {
    const row = candidates[match * per + n];
    if (row < 0) continue;
    const line = add(body, "tr"), own = row === matches[2 * match + 1];
    if (own) line.className = "good";
    [`${row}${own ? " (this match)" : ""}`, candidateDistances[match * per + n].toFixed(3), keypoints[1][4 * row].toFixed(0), keypoints[1][4 * row + 1].toFixed(0)].forEach((text) => add(line, "td", text));
  }
}
