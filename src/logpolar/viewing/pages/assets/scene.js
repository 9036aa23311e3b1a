// A reconstruction: its points and cameras, its photos in a table, and how they hang together.

const photos = data.photos, model = data.model;
const pairs = unpack(data.pairs), inliers = unpack(data.inliers), common = unpack(data.shared);
const strength = inliers.map((value, pair) => (value >= 0 ? value : common[pair]));
const FEWEST = 10000; // points drawn while the view moves
const state = { chosen: -1, renderer: null, sharpness: 1, thumbnails: [] };
const scene = model && {
  points: unpack(model.points), tints: unpack(model.colours), tracks: unpack(model.tracks), cameras: unpack(model.cameras),
  field: unpack(model.field), photos: unpack(model.photos), observed: unpack(model.observed), counts: unpack(model.counts),
};
const cameraOf = new Map(scene ? [...scene.photos].map((photo, camera) => [photo, camera]) : []);

// ---- Cameras -----------------------------------------------------------------------------------------------------

const axis = (camera, n) => [...scene.cameras.subarray(12 * camera + 3 * n, 12 * camera + 3 * n + 3)];
const centre = (camera) => axis(camera, 3);

// Corners of a photo in front of its camera, clockwise from the upper left.
function corners(camera, size = model.frustum) {
  const [right, down, forward] = [0, 1, 2].map((n) => axis(camera, n)), [x, y] = scene.field.subarray(2 * camera, 2 * camera + 2);
  const middle = along(centre(camera), forward, size);
  return [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([u, v]) => along(along(middle, right, u * x * size), down, v * y * size));
}

function shadeOf(photo) {
  if (cameraOf.has(photo)) return colour("--accent");
  return photos[photo].model === null ? colour("--bad") : colour("--weak");
}

function components(hex) {
  return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16) / 255);
}

function placeLines() {
  const positions = [], colours = [], chosen = cameraOf.get(state.chosen);
  const line = (a, b, tint) => { positions.push(...a, ...b); colours.push(...tint, ...tint); };
  const usual = [...components(colour("--stage-line")), state.chosen < 0 ? 0.8 : 0.4], marked = [...components(colour("--stage-mark")), 1];
  for (let camera = 0; camera < scene.photos.length; camera++) {
    const tint = camera === chosen ? marked : usual, box = corners(camera, model.frustum * (camera === chosen ? 1.6 : 1));
    box.forEach((corner, n) => { line(centre(camera), corner, tint); line(corner, box[(n + 1) % 4], tint); });
  }
  if (chosen !== undefined) {
    for (const { photo } of neighbours(state.chosen)) if (cameraOf.has(photo)) line(centre(chosen), centre(cameraOf.get(photo)), [...components(colour("--stage-mark")), 0.6]);
  }
  state.renderer.setLines(new Float32Array(positions), new Float32Array(colours));
}

// Where a corner of the photo as it is stored, which is what the camera sees, lies in the upright picture.
function uprightCorner([x, y], orientation) {
  if (orientation >= 5) [x, y] = [y, x];
  if ([2, 3, 6, 7].includes(orientation)) x = 1 - x;
  if ([3, 4, 7, 8].includes(orientation)) y = 1 - y;
  return [x, y];
}

// All photos small on one sheet, so that they are drawn at once.
function placePictures() {
  const side = Math.ceil(Math.sqrt(scene.photos.length)), cell = Math.max(8, Math.min(256, Math.floor(2048 / side)));
  const sheet = document.createElement("canvas"), positions = [], places = [];
  sheet.width = sheet.height = side * cell;
  const context = sheet.getContext("2d");
  scene.photos.forEach((photo, camera) => {
    const picture = state.thumbnails[photo], [column, row] = [camera % side, Math.floor(camera / side)];
    if (!picture) return;
    context.drawImage(picture, column * cell, row * cell, cell, cell);
    const box = corners(camera), spots = [[0, 0], [1, 0], [1, 1], [0, 1]].map((spot) => uprightCorner(spot, photo.orientation));
    for (const n of [0, 1, 2, 0, 2, 3]) {
      positions.push(...box[n]);
      places.push(...spots[n].map((part, which) => ([column, row][which] + 0.02 + 0.96 * part) / side));
    }
  });
  state.renderer.setPictures(new Float32Array(positions), new Float32Array(places), sheet);
}

// The points that a camera observes: gaps between their rows, seven bits a byte, the lowest first.
function observedBy(camera) {
  const rows = new Int32Array(scene.counts[camera]);
  let place = 0, row = -1;
  for (let before = 0; before < camera; before++) place += model.lengths[before];
  for (let n = 0; n < rows.length; n++) {
    let gap = 0, shift = 0, byte = 128;
    while (byte & 128) { byte = scene.observed[place++]; gap += (byte & 127) * 2 ** shift; shift += 7; }
    row += gap + 1;
    rows[n] = row;
  }
  return rows;
}

// ---- The view ----------------------------------------------------------------------------------------------------

// Points are lifted a little above the dark stage.
function paint() {
  const lifted = Uint8Array.from(scene.tints, (value) => 30 + 0.88 * value);
  state.renderer.setTints(element("colouring").value === "track" ? byTrack() : lifted);
  redraw();
}

// From red, in two photos, to green, in 16 and more.
function byTrack() {
  const tints = new Uint8Array(3 * scene.tracks.length);
  scene.tracks.forEach((track, n) => {
    const good = Math.max(0, Math.min(Math.log2(track / 2) / 3, 1));
    tints.set([232 - 177 * good, 75 + 135 * good, 65 + 40 * good], 3 * n);
  });
  return tints;
}

function render(now = 0) {
  if (!state.renderer) return;
  const canvas = element("view"), count = scene.tracks.length, most = pace.amount(count, now); // in random order: the first show the whole
  if (!pace.moving || most >= Math.min(3 * FEWEST, count)) state.sharpness = 1;
  else if (most <= FEWEST) state.sharpness = 0.5;
  state.renderer.draw(orbitMatrix(canvas.clientWidth, canvas.clientHeight), {
    paper: components(colour("--stage")), accent: components(colour("--stage-mark")), size: +element("size").value,
    least: +element("least").value, faint: state.chosen < 0 ? 0 : 0.7,
    most, sharpness: state.sharpness, frusta: pressed("frusta"), photos: pressed("photos"),
  });
}

const redraw = scheduled(render), pace = makePace(FEWEST, redraw);
const pressed = (id) => element(id).getAttribute("aria-pressed") === "true";

function move(change, ...values) {
  change(...values);
  pace.moved();
}

function resetView() {
  const { clientWidth: width, clientHeight: height } = element("view"), [yaw, pitch] = model.home;
  Object.assign(orbit, { yaw, pitch });
  enclose(scene.points.subarray(0, 6000), [...scene.photos].map((_, camera) => centre(camera)), width / height);
  redraw();
}

function lookFrom(photo) {
  if (!scene || !cameraOf.has(photo)) return;
  const camera = cameraOf.get(photo);
  lookAlong(centre(camera), axis(camera, 2), 0.5);
  redraw();
}

// The camera whose photo or centre is nearest to a place on the screen.
function cameraAt(x, y) {
  const { clientWidth: width, clientHeight: height } = element("view"), matrix = orbitMatrix(width, height);
  let best = -1, least = 18;
  for (let camera = 0; camera < scene.photos.length; camera++) {
    const box = corners(camera), middle = [0, 1, 2].map((n) => (box[0][n] + box[2][n]) / 2);
    for (const point of [centre(camera), middle]) {
      const pixel = toPixels(matrix, point, width, height), away = pixel ? Math.hypot(pixel[0] - x, pixel[1] - y) : Infinity;
      if (away < least) [best, least] = [scene.photos[camera], away];
    }
  }
  return best;
}

// ---- Selection ---------------------------------------------------------------------------------------------------

function neighbours(photo) {
  const found = [];
  for (let pair = 0; pair < strength.length; pair++) {
    const [a, b] = [pairs[2 * pair], pairs[2 * pair + 1]];
    if ((a === photo || b === photo) && strength[pair] > 0) found.push({ photo: a === photo ? b : a, pair });
  }
  return found.sort((x, y) => common[y.pair] - common[x.pair] || strength[y.pair] - strength[x.pair]).slice(0, 8);
}

function nameButton(parent, photo) {
  const button = add(parent, "button", photos[photo].name);
  button.type = "button";
  button.className = "link";
  button.onclick = () => choose(photo);
}

function choose(photo) {
  state.chosen = photo;
  element("chosen").hidden = photo < 0;
  if (photo >= 0) describePhoto(photo);
  for (const { line } of state.lines) line.classList.toggle("marked", +line.dataset.row === photo);
  if (state.renderer) {
    const marks = new Uint8Array(scene.tracks.length);
    if (cameraOf.has(photo)) for (const row of observedBy(cameraOf.get(photo))) marks[row] = 1;
    state.renderer.mark(marks);
    placeLines();
  }
  drawCharts();
  redraw();
}

function describePhoto(photo) {
  const { name, picture, points, error, keypoints, reason } = photos[photo], image = element("chosen-photo");
  element("chosen-name").textContent = name;
  image.hidden = !picture;
  element("chosen-missing").hidden = Boolean(picture);
  if (picture) [image.src, image.alt] = [picture, `The photo ${name}`];
  const registered = points ? `${points} points, mean error ${shown(error)} px` : "no points";
  element("facts").textContent = [reason && `Not in the model: ${reason}`, registered, keypoints !== null && `${keypoints} keypoints`].filter(Boolean).join("; ");
  element("fly").hidden = !cameraOf.has(photo);
  const table = element("neighbours"), near = neighbours(photo);
  element("near").hidden = !near.length;
  table.replaceChildren();
  fillTable(table, [
    { name: "photo", value: (row) => photos[row.photo].name, cell: (row, cell) => nameButton(cell, row.photo) },
    { name: "inliers", number: true, value: (row) => (inliers[row.pair] >= 0 ? inliers[row.pair] : null) },
    { name: "points", number: true, value: (row) => common[row.pair] },
  ], near);
}

function step(by) {
  const rows = state.lines.filter(({ line }) => !line.hidden).sort((a, b) => a.line.rowIndex - b.line.rowIndex).map(({ line }) => +line.dataset.row);
  if (!rows.length) return;
  const at = rows.indexOf(state.chosen);
  choose(rows[at < 0 ? 0 : (at + by + rows.length) % rows.length]);
}

// ---- Tables, charts, findings ------------------------------------------------------------------------------------

function fillPhotos() {
  state.lines = fillTable(element("table"), [
    { name: "photo", value: (row) => row.name, cell: (row, cell) => nameButton(cell, photos.indexOf(row)) },
    { name: "in the model", value: (row) => (row.reason ? "no" : "yes") },
    { name: "points", number: true, value: (row) => row.points },
    { name: "error (px)", number: true, digits: 2, value: (row) => row.error },
    { name: "keypoints", number: true, value: (row) => row.keypoints },
    { name: "verified pairs", number: true, value: (row) => row.pairs },
    { name: "camera", number: true, value: (row) => row.lens },
    { name: "focal length (px)", number: true, digits: 1, value: (row) => row.focal },
    { name: "why not", long: true, value: (row) => row.reason },
  ], photos);
  filterPhotos();
}

function filterPhotos() {
  const words = element("search").value.toLowerCase(), missing = element("only-missing").checked;
  let count = 0;
  for (const { line, row } of state.lines) {
    line.hidden = !row.name.toLowerCase().includes(words) || (missing && !row.reason);
    count += !line.hidden;
  }
  element("rows").textContent = `${count} of ${photos.length}`;
}

function fillLenses() {
  fillTable(element("lenses"), [
    { name: "camera", number: true, value: (row) => row.number },
    { name: "model", value: (row) => row.kind },
    { name: "size", value: (row) => `${row.width}\u00a0x\u00a0${row.height}` },
    { name: "focal length (px)", number: true, digits: 1, value: (row) => row.focal },
    { name: "view (degrees)", number: true, digits: 1, value: (row) => row.view },
    { name: "photos", number: true, value: (row) => row.photos },
    { name: "parameters", long: true, value: (row) => row.parameters },
  ], data.lenses);
}

function listFindings() {
  const place = element("findings");
  if (!data.findings.length) add(place, "p", "Nothing suspicious.").className = "good";
  for (const { level, title, advice, photos: rows } of data.findings) {
    const box = add(place, "div");
    box.className = `finding ${level}`;
    add(box, "strong", `${level === "problem" ? "Problem" : "Warning"}: ${title}.`);
    add(box, "p", advice);
    const list = add(box, "p");
    rows.slice(0, 12).forEach((row) => nameButton(list, row));
    if (rows.length > 12) add(list, "span", `and ${rows.length - 12} more`).className = "soft";
  }
}

function drawCharts() {
  const graph = element("graph");
  graph.parentElement.hidden = !data.graph;
  if (data.graph) state.photoAt = drawGraph(graph, state.places, pairs, strength, shadeOf, state.chosen);
  state.cellAt = drawMatrix(element("matrix"), photos.length, pairs, strength, state.chosen);
}

function photoText(photo) {
  const { name, reason, points, pairs: verified } = photos[photo];
  return `${name}: ${reason ? `not in the model, ${reason}` : `${points} points`}, ${verified} verified pair${verified === 1 ? "" : "s"}`;
}

function matrixText() {
  const most = strength.reduce((a, b) => Math.max(a, b), 0), what = inliers.some((value) => value >= 0) ? "inliers" : "common points";
  return most ? `Photos in the order of their names; the darker a cell, the more ${what}: at most ${most}.` : "No pair of photos is verified.";
}

function pairText(a, b) {
  if (a === b) return photos[a].name;
  for (let pair = 0; pair < strength.length; pair++) {
    if (pairs[2 * pair] !== Math.min(a, b) || pairs[2 * pair + 1] !== Math.max(a, b)) continue;
    const verified = inliers[pair] < 0 ? "" : inliers[pair] ? `${inliers[pair]} inliers, ` : "not verified, ";
    return `${photos[a].name} – ${photos[b].name}: ${verified}${common[pair]} common points`;
  }
  return `${photos[a].name} – ${photos[b].name}: not matched`;
}

function fillSeconds() {
  const stages = Object.entries(data.seconds), most = Math.max(...stages.map(([, value]) => value), 1e-9);
  if (!stages.length) add(element("seconds"), "dt", "not recorded").className = "soft";
  for (const [stage, value] of stages) {
    add(add(element("seconds"), "dt"), "div", stage).style.setProperty("--part", `${(100 * value) / most}%`);
    add(element("seconds"), "dd", `${value.toFixed(1)} s`);
  }
}

// ---- Controls ----------------------------------------------------------------------------------------------------

function toggle(id) {
  press(id, !pressed(id));
  redraw();
}

const inView = (action) => () => (document.activeElement === element("view") && scene ? action() : false);
const arrow = (x, y) => (event) => inView(() => (event.shiftKey ? move(pan, -0.1 * x, -0.1 * y) : move(turn, -0.1 * x, -0.1 * y)))();
const ACTIONS = {
  n: () => step(1), p: () => step(-1), l: () => lookFrom(state.chosen), c: () => toggle("frusta"), t: () => toggle("photos"),
  0: () => model && resetView(), Escape: () => choose(-1), "+": inView(() => move(approach, 1.2)), "-": inView(() => move(approach, 1 / 1.2)),
  ArrowLeft: arrow(-1, 0), ArrowRight: arrow(1, 0), ArrowUp: arrow(0, -1), ArrowDown: arrow(0, 1),
};

function connect() {
  for (const id of ["frusta", "photos"]) element(id).onclick = () => toggle(id);
  element("reset").onclick = ACTIONS[0];
  element("fly").onclick = ACTIONS.l;
  element("close").onclick = ACTIONS.Escape;
  element("colouring").onchange = () => scene && paint();
  element("size").oninput = redraw;
  element("least").oninput = () => { countPoints(); redraw(); };
  element("search").oninput = element("only-missing").onchange = filterPhotos;
  element("graph").onmousemove = (event) => { const photo = state.photoAt(event.offsetX, event.offsetY); element("graph-text").textContent = photo < 0 ? "" : photoText(photo); };
  element("graph").onclick = (event) => { const photo = state.photoAt(event.offsetX, event.offsetY); if (photo >= 0) choose(photo); };
  element("matrix").onmousemove = (event) => { const cell = state.cellAt(event.offsetX, event.offsetY); if (cell) element("matrix-text").textContent = pairText(...cell); };
  element("matrix").onclick = (event) => { const cell = state.cellAt(event.offsetX, event.offsetY); if (cell) choose(cell[1]); };
  followKeys(ACTIONS);
  window.addEventListener("resize", () => { drawCharts(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => choose(state.chosen));
  if (!state.renderer) return;
  const height = () => element("view").clientHeight;
  followPointers(element("view"), {
    drag: (dx, dy, event, fingers) => {
      const moves = fingers > 1 || event.shiftKey || event.buttons === 2;
      move(moves ? pan : turn, ...(moves ? [dx / height(), dy / height()] : [(4 * dx) / height(), (4 * dy) / height()]));
    },
    zoom: (x, y, factor) => move(approach, factor),
    tap: (x, y) => { element("view").focus(); choose(cameraAt(x, y)); },
  });
}

function countPoints() {
  const least = +element("least").value;
  element("least-value").textContent = String(least);
  if (!scene) return;
  const count = scene.tracks.reduce((sum, track) => sum + (track >= least), 0);
  element("count").textContent = `${count} points` + (model.total > scene.tracks.length ? `, of ${model.total} in the model` : "");
}

function startView() {
  if (scene) {
    element("size").value = Math.max(0.75, 2 * Math.min(1, (20000 / scene.tracks.length) ** 0.25)); // many points are fine ones
    state.renderer = (hasGpu() ? makeGpuRenderer : makeSoftwareRenderer)(element("view"), scene);
    paint();
    return resetView();
  }
  element("view").hidden = element("bar").hidden = true;
  element("no-view").hidden = false;
  element("no-view-text").textContent = data.no_model;
  photos.forEach(({ name, picture }, photo) => {
    if (!picture) return;
    const button = add(element("sheet"), "button"), image = document.createElement("img");
    [button.type, button.title, image.src, image.alt, image.loading] = ["button", name, picture, name, "lazy"];
    button.onclick = () => choose(photo);
    button.append(image);
  });
}

async function start() {
  element("title").textContent = document.title = data.title;
  element("verdict").textContent = data.verdict;
  element("verdict").className = data.findings.some(({ level }) => level === "problem") ? "bad" : "good";
  showFooter();
  state.places = data.graph ? unpack(data.graph) : null;
  fillPhotos();
  fillLenses();
  fillSeconds();
  listFindings();
  element("matrix-text").textContent = matrixText();
  startView();
  connect();
  countPoints();
  choose(-1);
  state.thumbnails = await Promise.all(photos.map(({ picture }) => (picture ? loadPicture(picture) : null)));
  if (state.renderer) placePictures();
  redraw();
  document.body.dataset.ready = "true";
}

start();
