// Two photos and their matches on one canvas. World coordinates are pixels of the photos, the second one moved aside.

const GAP = 0.02;
const matches = unpack(data.matches), stage = unpack(data.stage), ratio = unpack(data.ratio), distance = unpack(data.distance);
const candidates = unpack(data.candidates), candidateDistances = unpack(data.candidate_distances);
const roll = unpack(data.roll), shift = unpack(data.shift), correlation = unpack(data.correlation);
const descriptors = data.descriptors.map(unpack), keypoints = data.images.map((image) => unpack(image.keypoints));
const count = stage.length, per = data.candidates.shape[1];

const view = { scale: 1, x: 0, y: 0 };
const state = { stacked: false, swapped: false, guide: false, chosen: -1, shown: [], photos: [], atlases: [], overlay: null };

const keypoint = (side, match) => keypoints[side].subarray(4 * matches[2 * match + side], 4 * matches[2 * match + side] + 4);
const confidence = data.confidence && unpack(data.confidence);
const wrapped = (angle) => ((angle + 540) % 360 + 360) % 360 - 180;
const detected = {
  octaves: Float32Array.from({ length: count }, (_, m) => Math.log2(keypoint(1, m)[2] / keypoint(0, m)[2])),
  rotation: Float32Array.from({ length: count }, (_, m) => wrapped(keypoint(1, m)[3] - keypoint(0, m)[3])),
};
// Keypoints of one size and angle say nothing of scale and rotation: then the roll and shift of the patches do.
const implied = Boolean(data.polar) && count > 0 && detected.octaves.every((value) => value === 0) && detected.rotation.every((value) => value === detected.rotation[0]);
const octaves = implied ? Float32Array.from(shift, (value, m) => value * Math.log2(columnRatio(1, m))) : detected.octaves;
const rotation = implied ? Float32Array.from(roll, (value) => wrapped(detected.rotation[0] + (360 * value) / data.patch_size[0])) : detected.rotation;

// ---- Layout: where each photo lies -------------------------------------------------------------------------------

function places() {
  const [first, second] = state.swapped ? [1, 0] : [0, 1];
  const sizes = data.images.map((image) => [image.width, image.height]);
  const scale = state.stacked ? sizes[first][0] / sizes[second][0] : sizes[first][1] / sizes[second][1];
  const aside = state.stacked ? [0, sizes[first][1] * (1 + GAP)] : [sizes[first][0] * (1 + GAP), 0];
  const found = [];
  found[first] = { x: 0, y: 0, scale: 1 };
  found[second] = { x: aside[0], y: aside[1], scale };
  return found;
}

function toScreen(place, x, y) {
  return [(place.x + (x + 0.5) * place.scale) * view.scale + view.x, (place.y + (y + 0.5) * place.scale) * view.scale + view.y];
}

// Right and lower end of both photos.
function extent() {
  const boxes = places().map((place, side) => [place.x + data.images[side].width * place.scale, place.y + data.images[side].height * place.scale]);
  return [0, 1].map((n) => Math.max(...boxes.map((box) => box[n])));
}

// How large both photos can be shown in a layout: the area of the smaller one on the screen.
function roomFor(stacked) {
  const { width, height } = element("view").getBoundingClientRect();
  state.stacked = stacked;
  const [right, bottom] = extent(), scale = Math.min(width / right, height / bottom);
  return Math.min(...places().map((place, side) => data.images[side].width * data.images[side].height * (place.scale * scale) ** 2));
}

// Side by side, unless photos are far larger one above the other.
function chooseLayout() {
  state.stacked = roomFor(true) > 1.5 * roomFor(false);
}

function resetView() {
  const { width, height } = element("view").getBoundingClientRect(), [right, bottom] = extent();
  view.scale = 0.98 * Math.min(width / right, height / bottom);
  view.x = (width - right * view.scale) / 2;
  view.y = (height - bottom * view.scale) / 2;
  redraw();
}

// ---- Drawing -----------------------------------------------------------------------------------------------------

const redraw = scheduled(draw), pace = makePace(500, redraw);

// Colours by a value: where it lies between both ends, from 0 to 1, and the colour there.
const SHADES = {
  ratio: { ends: ["0", "1"], part: (m) => Math.min(ratio[m], 1), colour: (t) => `hsl(${120 * (1 - t)} 90% 50%)` },
  confidence: { ends: ["0", "1"], part: (m) => confidence[m], colour: (t) => `hsl(${120 * t} 90% 50%)` },
  scale: { ends: ["1/16x", "16x"], part: (m) => (Math.max(-4, Math.min(octaves[m], 4)) + 4) / 8, colour: (t) => `hsl(${380 - 320 * t} 90% 58%)` },
  rotation: { ends: ["-180°", "180°"], part: (m) => (rotation[m] + 180) / 360, colour: (t) => `hsl(${360 * t} 90% 58%)` },
};

function shade(match) {
  const shades = SHADES[element("colouring").value];
  if (shades) return shades.colour(shades.part(match));
  return stage[match] === 3 ? "#22c55e" : stage[match] === 2 ? "#ef4444" : "#9ca3af";
}

function recolour() {
  const shades = SHADES[element("colouring").value];
  element("shades").hidden = !shades;
  if (shades) {
    [element("shades-low").textContent, element("shades-high").textContent] = shades.ends;
    element("shades").setAttribute("aria-label", `Colours from ${shades.ends.join(" to ")}`);
    element("shades-bar").style.background = `linear-gradient(to right, ${Array.from({ length: 17 }, (_, n) => shades.colour(n / 16)).join(",")})`;
  }
  choose(state.chosen);
}

function draw(now) {
  const { context, width, height } = fitCanvas(element("view"));
  const place = places();
  context.imageSmoothingEnabled = view.scale < 4;
  for (const side of [0, 1]) {
    if (!state.photos[side]) continue;
    const [x, y] = toScreen(place[side], -0.5, -0.5), factor = place[side].scale * view.scale;
    const size = [data.images[side].width * factor, data.images[side].height * factor];
    context.drawImage(state.photos[side], x, y, ...size);
    context.fillStyle = "rgb(0 0 0 / 20%)"; // lines stand out from a darker photo
    context.fillRect(x, y, ...size);
  }
  if (state.guide && state.overlay) drawOverlay(context, place[0]);
  context.lineWidth = 1;
  context.globalAlpha = state.chosen < 0 ? 0.7 : 0.25;
  const lines = pace.amount(state.shown.length, now); // the best come first
  for (let n = 0; n < lines; n++) drawLine(context, place, state.shown[n]);
  context.globalAlpha = 1;
  if (state.chosen >= 0) {
    context.lineWidth = 2.5;
    drawLine(context, place, state.chosen);
    for (const side of [0, 1]) drawKeypoint(context, place[side], keypoint(side, state.chosen), shade(state.chosen));
    context.lineWidth = 1;
    for (const side of [0, 1]) drawSupport(context, place[side], keypoint(side, state.chosen), shade(state.chosen));
    drawCandidates(context, place[1]);
  }
  if (state.guide && !state.overlay) drawEpipolar(context, place, width, height);
}

function drawLine(context, place, match) {
  const a = keypoint(0, match), b = keypoint(1, match);
  context.strokeStyle = shade(match);
  context.beginPath();
  context.moveTo(...toScreen(place[0], a[0], a[1]));
  context.lineTo(...toScreen(place[1], b[0], b[1]));
  context.stroke();
}

function drawKeypoint(context, place, point, stroke) {
  const [x, y] = toScreen(place, point[0], point[1]), radius = Math.max((point[2] / 2) * place.scale * view.scale, 4);
  const angle = (point[3] * Math.PI) / 180;
  context.strokeStyle = stroke;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.moveTo(x, y);
  context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  context.stroke();
}

// As far as the descriptor looks.
function drawSupport(context, place, [x, y, size], stroke) {
  context.strokeStyle = stroke;
  context.beginPath();
  context.arc(...toScreen(place, x, y), data.radius * size * place.scale * view.scale, 0, 2 * Math.PI);
  context.stroke();
}

function drawCandidates(context, place) {
  context.lineWidth = 1.5;
  context.setLineDash([3, 3]);
  for (let n = 0; n < per; n++) {
    const row = candidates[state.chosen * per + n];
    if (row >= 0 && row !== matches[2 * state.chosen + 1]) drawKeypoint(context, place, keypoints[1].subarray(4 * row, 4 * row + 4), "#f59e0b");
  }
  context.setLineDash([]);
}

function drawEpipolar(context, place, width, height) {
  if (state.chosen < 0 || !data.matrix || data.geometry === "homography" || !data.fundamental) return;
  const F = data.fundamental, a = keypoint(0, state.chosen), b = keypoint(1, state.chosen);
  const there = [0, 1, 2].map((r) => F[r][0] * a[0] + F[r][1] * a[1] + F[r][2]);
  const here = [0, 1, 2].map((c) => F[0][c] * b[0] + F[1][c] * b[1] + F[2][c]);
  context.strokeStyle = "#38bdf8";
  context.lineWidth = 1.5;
  [[0, here], [1, there]].forEach(([side, [A, B, C]]) => {
    const { width: w, height: h } = data.images[side], ends = [];
    for (const x of [0, w - 1]) if (Math.abs(B) > 1e-12) ends.push([x, -(A * x + C) / B]);
    for (const y of [0, h - 1]) if (Math.abs(A) > 1e-12) ends.push([-(B * y + C) / A, y]);
    const inside = ends.filter(([x, y]) => x >= -0.5 && y >= -0.5 && x <= w - 0.5 && y <= h - 0.5);
    if (inside.length < 2) return;
    context.beginPath();
    context.moveTo(...toScreen(place[side], ...inside[0]));
    context.lineTo(...toScreen(place[side], ...inside[inside.length - 1]));
    context.stroke();
  });
}

// The second photo under the homography, in triangles: a canvas knows affine maps only.
function drawOverlay(context, place) {
  const H = data.matrix, { width, height } = data.images[0], [w, h] = [data.images[1].width, data.images[1].height];
  const photo = state.photos[1], factor = photo.naturalWidth / w, cells = 14;
  const map = (x, y) => { const z = H[2][0] * x + H[2][1] * y + H[2][2]; return [(H[0][0] * x + H[0][1] * y + H[0][2]) / z, (H[1][0] * x + H[1][1] * y + H[1][2]) / z]; };
  context.globalAlpha = 0.6;
  for (let row = 0; row < cells; row++) for (let column = 0; column < cells; column++) {
    const corner = (i, j) => [((column + i) * width) / cells, ((row + j) * height) / cells];
    for (const triangle of [[corner(0, 0), corner(1, 0), corner(0, 1)], [corner(1, 1), corner(0, 1), corner(1, 0)]]) {
      const source = triangle.map(([x, y]) => map(x, y));
      if (!source.every(([x, y]) => x > -w / 4 && y > -h / 4 && x < 1.25 * w && y < 1.25 * h)) continue;
      drawTriangle(context, photo, source.map(([x, y]) => [(x + 0.5) * factor, (y + 0.5) * factor]), triangle.map(([x, y]) => toScreen(place, x, y)));
    }
  }
  context.globalAlpha = 1;
}

function drawTriangle(context, photo, from, to) {
  const [[x0, y0], [x1, y1], [x2, y2]] = from, [[u0, v0], [u1, v1], [u2, v2]] = to;
  const area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0);
  if (Math.abs(area) < 1e-6) return;
  const solve = (p0, p1, p2) => {
    const a = ((p1 - p0) * (y2 - y0) - (p2 - p0) * (y1 - y0)) / area, b = ((p2 - p0) * (x1 - x0) - (p1 - p0) * (x2 - x0)) / area;
    return [a, b, p0 - a * x0 - b * y0];
  };
  const [a, c, e] = solve(u0, u1, u2), [b, d, f] = solve(v0, v1, v2);
  context.save();
  context.beginPath();
  context.moveTo(u0, v0); context.lineTo(u1, v1); context.lineTo(u2, v2); context.closePath();
  context.clip();
  context.transform(a, b, c, d, e, f);
  context.drawImage(photo, 0, 0);
  context.restore();
}

// ---- Filters, funnel, histograms ---------------------------------------------------------------------------------

function applyFilters() {
  const most = { ratio: +element("ratio").value, confidence: +element("confidence").value, scale: +element("scale").value, rotation: +element("rotation").value };
  const wanted = [0, 1, 2, 3].map((n) => element(`stage${n}`).checked);
  state.shown = [];
  for (let match = 0; match < count; match++) {
    const free = [most.ratio >= 1, most.scale >= 6, most.rotation >= 180];
    const fits = (free[0] || ratio[match] <= most.ratio) && (free[1] || Math.abs(octaves[match]) <= most.scale) && (free[2] || Math.abs(rotation[match]) <= most.rotation) && (!confidence || confidence[match] >= most.confidence);
    if (wanted[stage[match]] && fits) state.shown.push(match);
  }
  element("ratio-value").textContent = most.ratio >= 1 ? "any" : most.ratio.toFixed(2);
  element("confidence-value").textContent = most.confidence > 0 ? most.confidence.toFixed(2) : "any";
  element("scale-value").textContent = most.scale >= 6 ? "any" : `${(2 ** most.scale).toFixed(1)}x`;
  element("rotation-value").textContent = most.rotation >= 180 ? "any" : `${most.rotation} degrees`;
  element("count").textContent = `${state.shown.length} lines` + (data.hidden ? ` (${data.hidden} weaker matches are not in this page)` : "");
  element("inliers").setAttribute("aria-pressed", String(wanted[3] && !wanted[2] && !wanted[1] && !wanted[0]));
  const scales = drawHistogram("scale", state.shown.map((m) => octaves[m]), -4, 4, ["1/16", "1", "16"]);
  const angles = drawHistogram("rotation", state.shown.map((m) => rotation[m]), -180, 180, ["-180", "0", "180"]);
  summarise("scale", "the change of keypoint size", scales && `median ${(2 ** scales.median).toFixed(2)}x`);
  summarise("rotation", "the difference of keypoint angles", angles && `most between ${angles.peak.map(Math.round).join(" and ")}`);
  redraw();
}

function toggleInliers() {
  const only = element("inliers").getAttribute("aria-pressed") !== "true";
  element("stage3").checked = true;
  element("stage2").checked = !only;
  if (only) element("stage1").checked = element("stage0").checked = false;
  applyFilters();
}

// A histogram in words, for who cannot see it as well.
function summarise(id, what, words) {
  element(`${id}-summary`).textContent = words || "";
  element(`${id}-histogram`).setAttribute("aria-label", `Histogram of ${what}: ${state.shown.length} lines${words ? `, ${words}` : ""}`);
}

// Returns the median and the ends of the fullest bin; null without values.
function drawHistogram(id, values, low, high, labels) {
  const { context, width, height } = fitCanvas(element(`${id}-histogram`)), bins = new Array(32).fill(0), base = height - 16;
  for (const value of values) bins[Math.max(0, Math.min(31, Math.floor((32 * (value - low)) / (high - low))))]++;
  const most = Math.max(...bins, 1);
  context.fillStyle = colour("--accent");
  bins.forEach((bin, n) => context.fillRect((n * width) / 32 + 1, base - (bin / most) * (base - 4), width / 32 - 2, (bin / most) * (base - 4)));
  context.fillStyle = colour("--soft");
  context.font = "11px system-ui, sans-serif";
  labels.forEach((label, n) => {
    context.textAlign = ["left", "center", "right"][n];
    context.fillText(label, (n * width) / 2 + [3, 0, -3][n], height - 4);
  });
  const peak = bins.indexOf(most), step = (high - low) / bins.length, sorted = values.sort((a, b) => a - b);
  return values.length ? { median: sorted[values.length >> 1], peak: [low + peak * step, low + (peak + 1) * step] } : null;
}

// ---- Selection --------------------------------------------------------------------------------------------------

function choose(match) {
  state.chosen = match;
  element("chosen").hidden = match < 0;
  if (match >= 0) showMatch(match);
  redraw();
}

function step(by) {
  if (!state.shown.length) return;
  const at = state.shown.indexOf(state.chosen);
  choose(state.shown[at < 0 ? 0 : (at + by + state.shown.length) % state.shown.length]);
}

// The line nearest to a point of the screen, within a few pixels.
function matchAt(x, y) {
  const place = places();
  let best = -1, least = 8;
  for (const match of state.shown) {
    const a = keypoint(0, match), b = keypoint(1, match);
    const [x0, y0] = toScreen(place[0], a[0], a[1]), [x1, y1] = toScreen(place[1], b[0], b[1]);
    const length = (x1 - x0) ** 2 + (y1 - y0) ** 2 || 1;
    const along = Math.max(0, Math.min(1, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length));
    const away = Math.hypot(x0 + along * (x1 - x0) - x, y0 + along * (y1 - y0) - y);
    if (away < least) [best, least] = [match, away];
  }
  return best;
}

// ---- Controls ----------------------------------------------------------------------------------------------------

function zoomAt(x, y, factor) {
  const scale = Math.max(0.01, Math.min(view.scale * factor, 64));
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  pace.moved();
}

function pan(dx, dy) {
  view.x += dx;
  view.y += dy;
  pace.moved();
}

function zoomMiddle(factor) {
  const { width, height } = element("view").getBoundingClientRect();
  zoomAt(width / 2, height / 2, factor);
}

const arrow = (by, x, y) => (event) => (event.shiftKey ? pan(60 * x, 60 * y) : step(by));
const ACTIONS = {
  v: () => { state.stacked = !state.stacked; press("layout", state.stacked); resetView(); },
  s: () => { state.swapped = !state.swapped; press("swap", state.swapped); resetView(); },
  i: toggleInliers,
  e: () => { state.guide = !state.guide; press("guide", state.guide); redraw(); },
  0: resetView,
  Escape: () => choose(-1),
  "+": () => zoomMiddle(1.25),
  "-": () => zoomMiddle(0.8),
  ArrowRight: arrow(1, -1, 0),
  ArrowDown: arrow(1, 0, -1),
  ArrowLeft: arrow(-1, 1, 0),
  ArrowUp: arrow(-1, 0, 1),
};

function connect() {
  element("layout").onclick = ACTIONS.v;
  element("swap").onclick = ACTIONS.s;
  element("inliers").onclick = ACTIONS.i;
  element("guide").onclick = ACTIONS.e;
  element("reset").onclick = resetView;
  element("colouring").onchange = recolour;
  element("align").onchange = () => choose(state.chosen);
  for (const id of ["ratio", "confidence", "scale", "rotation", "stage0", "stage1", "stage2", "stage3"]) element(id).oninput = applyFilters;
  followKeys(ACTIONS);
  window.addEventListener("resize", () => { resetView(); applyFilters(); });
  followPointers(element("view"), {
    drag: pan,
    zoom: zoomAt,
    tap: (x, y) => choose(matchAt(x, y)),
  });
}

// Why nothing matches, as far as that is known.
function emptyWords() {
  const bare = data.images.filter((_, side) => !keypoints[side].length).map(({ name }) => name);
  return bare.length ? `No matches: no keypoints in ${bare.join(" and ")}` : "No matches: no common scene found";
}

function describe() {
  document.title = `${data.images[0].name} – ${data.images[1].name}`;
  element("title").title = data.images.map((image) => image.path).join("\n");
  element("title").textContent = data.images.map((image) => `${image.name} (${image.width} x ${image.height})`).join("  –  ");
  const verdict = element("verdict");
  if (data.common_scene === null && data.matches_count) verdict.textContent = `${data.matches_count} matches; no geometry was estimated`;
  else if (!data.matches_count) verdict.textContent = emptyWords();
  else if (data.common_scene) verdict.textContent = `${data.inliers} of ${data.matches_count} matches agree with one ${data.geometry_name} (${data.threshold} px)`;
  else verdict.textContent = `No common scene found: ${data.inliers} of ${data.matches_count} matches agree, no more than chance explains`;
  verdict.className = data.common_scene === false || !data.matches_count ? "bad" : "good";
  const most = Math.max(...data.funnel.map(([, value]) => value), 1);
  for (const [name, value] of data.funnel) {
    const bar = add(add(element("funnel"), "dt"), "div", name);
    bar.style.setProperty("--part", `${(100 * value) / most}%`);
    add(element("funnel"), "dd", String(value));
  }
  if (data.geometry === "homography") element("guide").textContent = "Warped overlay";
  element("guide").disabled = !data.matrix || (data.geometry !== "homography" && !data.fundamental);
  data.stages.forEach((name, n) => {
    element(`stage${n}-count`).textContent = stage.reduce((sum, each) => sum + (each === n), 0);
    element(`stage${n}`).parentElement.hidden = !name;
    element(`stage${n}-name`).textContent = name;
  });
  for (const part of document.querySelectorAll(".confidence")) part.hidden = !confidence;
  element("implied").hidden = !implied;
  element("align").parentElement.hidden = !data.polar;
  for (const name of document.querySelectorAll(".pattern")) name.textContent = data.polar ? "log-polar" : "as described";
  showFooter();
  press("layout", state.stacked);
}

async function start() {
  chooseLayout();
  describe();
  connect();
  resetView();
  applyFilters();
  state.photos = await Promise.all(data.images.map((image) => loadPicture(image.photo)));
  state.overlay = data.geometry === "homography" && data.matrix ? data.matrix : null;
  resetView();
  state.atlases = await Promise.all(data.patches.map(loadPicture));
  document.body.dataset.ready = "true";
}

start();
