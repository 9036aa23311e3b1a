// Points, lines and small pictures drawn by the CPU: where WebGL is missing or would run on the CPU itself, several
// times slower than this. The same methods as in renderer.js.

function makeSoftwareRenderer(canvas, { points, tints, tracks }) {
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  const count = tracks.length;
  let colours = packTints(tints), marks = new Uint8Array(count), image = null, frame = null;
  let lines = { positions: new Float32Array(0), tints: [], parts: [] };
  let pictures = { positions: new Float32Array(0), places: new Float32Array(0), sheet: null };

  function resize(style) {
    const density = style.sharpness * (window.devicePixelRatio || 1);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.max(Math.round(side * density), 1));
    if (frame && frame.width === width && frame.height === height) return;
    [canvas.width, canvas.height] = [width, height];
    image = context.createImageData(width, height);
    frame = { width, height, pixels: new Uint32Array(image.data.buffer), depth: new Float32Array(width * height) };
  }
  return {
    mark: (values) => { marks = values; },
    setTints: (values) => { colours = packTints(values); },
    setLines(positions, values) {
      const starts = Array.from({ length: positions.length / 6 }, (_, n) => 8 * n);
      lines = { positions, tints: starts.map((at) => packColour(values.subarray(at, at + 3))), parts: starts.map((at) => Math.round(256 * values[at + 3])) };
    },
    setPictures(positions, places, source) {
      const { data: bytes, width, height } = source.getContext("2d").getImageData(0, 0, source.width, source.height);
      pictures = { positions, places, sheet: { width, height, pixels: new Uint32Array(bytes.buffer) } };
    },
    draw(matrix, style) {
      resize(style);
      frame.pixels.fill(packColour(style.paper));
      frame.depth.fill(0);
      plotPoints(frame, matrix, style, { points, tracks, marks, tints: colours, count: Math.min(count, style.most) });
      if (style.photos && pictures.sheet) plotPictures(frame, matrix, pictures);
      if (style.frusta) plotLines(frame, matrix, lines);
      context.putImageData(image, 0, 0);
    },
  };
}

// Colours as the pixels of a canvas: alpha, blue, green, red from the highest byte to the lowest.
const packBytes = (red, green, blue) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
const packColour = ([red, green, blue]) => packBytes(Math.round(255 * red), Math.round(255 * green), Math.round(255 * blue));

// A colour between two: ``part`` of 256 of the second.
function blend(first, second, part) {
  const keep = 256 - part;
  const ends = (((first & 0xff00ff) * keep + (second & 0xff00ff) * part) >>> 8) & 0xff00ff;
  const middle = (((first & 0xff00) * keep + (second & 0xff00) * part) >>> 8) & 0xff00;
  return (0xff000000 | ends | middle) >>> 0;
}

function packTints(tints) {
  return Uint32Array.from({ length: tints.length / 3 }, (_, n) => packBytes(tints[3 * n], tints[3 * n + 1], tints[3 * n + 2]));
}

// How many pixels a disc leaves out at either end of each row, by its diameter.
const DISCS = Array.from({ length: 26 }, (_, side) => Int8Array.from({ length: side }, (_, row) => {
  const radius = side / 2, away = row + 0.5 - radius;
  return side < 3 ? 0 : Math.round(radius - Math.sqrt(radius * radius - away * away));
}));

// Discs, the near before the distant: ``depth`` holds 1 / w, so that 0 is infinitely far.
function plotPoints({ width, height, pixels, depth }, m, style, { points, tracks, marks, tints, count }) {
  const paper = packColour(style.paper), accent = packColour(style.accent), faint = Math.round(256 * style.faint), reach = style.size * height * 0.004;
  const [halfWidth, halfHeight] = [width / 2, height / 2];
  for (let n = 0, at = 0; n < count; n++, at += 3) {
    if (tracks[n] < style.least) continue;
    const x = points[at], y = points[at + 1], z = points[at + 2], w = m[3] * x + m[7] * y + m[11] * z + m[15];
    if (w <= 0 || m[2] * x + m[6] * y + m[10] * z + m[14] < -w) continue; // behind the viewer, or before the near plane
    const near = 1 / w, side = Math.max(1, Math.min(24, reach * near)) + marks[n];
    const left = Math.round(((m[0] * x + m[4] * y + m[8] * z + m[12]) * near + 1) * halfWidth - side / 2), right = left + Math.max(Math.round(side), 1);
    const top = Math.round((1 - (m[1] * x + m[5] * y + m[9] * z + m[13]) * near) * halfHeight - side / 2), bottom = top + right - left;
    if (right <= 0 || bottom <= 0 || left >= width || top >= height) continue;
    const tint = marks[n] ? blend(tints[n], accent, 128) : faint ? blend(tints[n], paper, faint) : tints[n];
    const from = left < 0 ? 0 : left, to = right > width ? width : right, last = bottom > height ? height : bottom;
    const disc = DISCS[right - left];
    for (let row = top < 0 ? 0 : top; row < last; row++) {
      const cut = disc[row - top], start = left + cut > from ? left + cut : from, end = right - cut < to ? right - cut : to;
      for (let place = row * width + start, stop = row * width + end; place < stop; place++) {
        if (depth[place] < near) { depth[place] = near; pixels[place] = tint; }
      }
    }
  }
}

// Corners as x, y in pixels and 1 / w; false if one of them is behind the near plane.
function projectCorners({ width, height }, m, positions, first, count, corners) {
  for (let n = 0, at = 3 * first; n < count; n++, at += 3) {
    const x = positions[at], y = positions[at + 1], z = positions[at + 2], w = m[3] * x + m[7] * y + m[11] * z + m[15];
    if (w <= 0 || m[2] * x + m[6] * y + m[10] * z + m[14] < -w) return false;
    corners[3 * n] = ((m[0] * x + m[4] * y + m[8] * z + m[12]) / w + 1) * (width / 2);
    corners[3 * n + 1] = (1 - (m[1] * x + m[5] * y + m[9] * z + m[13]) / w) * (height / 2);
    corners[3 * n + 2] = 1 / w;
  }
  return true;
}

// One pixel wide; what is nearer hides them. Lines that reach behind the viewer are left out.
function plotLines(frame, matrix, { positions, tints, parts }) {
  const { width, height, pixels, depth } = frame, ends = new Float64Array(6);
  for (let n = 0; n < positions.length / 3; n += 2) {
    if (!projectCorners(frame, matrix, positions, n, 2, ends)) continue;
    const tint = tints[n / 2], part = parts[n / 2];
    const [dx, dy, dn] = [ends[3] - ends[0], ends[4] - ends[1], ends[5] - ends[2]], steps = Math.ceil(Math.max(Math.abs(dx), Math.abs(dy), 1));
    const [start, stop] = clipLine(ends, dx, dy, width, height);
    for (let step = Math.ceil(start * steps); step <= stop * steps; step++) {
      const t = step / steps, x = Math.floor(ends[0] + t * dx), y = Math.floor(ends[1] + t * dy);
      if (x < 0 || y < 0 || x >= width || y >= height) continue;
      const place = y * width + x;
      if (depth[place] <= ends[2] + t * dn) pixels[place] = blend(pixels[place], tint, part);
    }
  }
}

// The part of a line inside the frame, as fractions of its length.
function clipLine(ends, dx, dy, width, height) {
  let [start, stop] = [0, 1];
  for (const [from, by, most] of [[ends[0], dx, width], [ends[1], dy, height]]) {
    if (by === 0) { if (from < 0 || from >= most) stop = -1; continue; }
    const [a, b] = [-from / by, (most - from) / by];
    start = Math.max(start, Math.min(a, b));
    stop = Math.min(stop, Math.max(a, b));
  }
  return [start, stop];
}

// Triangles with a texture, in perspective: texture coordinates over w are linear on the screen.
function plotPictures(frame, matrix, { positions, places, sheet }) {
  const corners = new Float64Array(9);
  for (let n = 0; n < positions.length / 3; n += 3) {
    if (projectCorners(frame, matrix, positions, n, 3, corners)) plotTriangle(frame, corners, places, n, sheet);
  }
}

function plotTriangle({ width, height, pixels, depth }, c, places, first, sheet) {
  const area = (c[3] - c[0]) * (c[7] - c[1]) - (c[6] - c[0]) * (c[4] - c[1]);
  if (Math.abs(area) < 1e-6) return;
  const top = Math.max(0, Math.ceil(Math.min(c[1], c[4], c[7]) - 0.5)), bottom = Math.min(height - 1, Math.floor(Math.max(c[1], c[4], c[7]) - 0.5));
  const left = Math.max(0, Math.ceil(Math.min(c[0], c[3], c[6]) - 0.5)), right = Math.min(width - 1, Math.floor(Math.max(c[0], c[3], c[6]) - 0.5));
  // Barycentric coordinates: how the weights of the second and third corner grow to the right and downwards.
  const [across1, down1] = [(c[7] - c[1]) / area, -(c[6] - c[0]) / area], [across2, down2] = [-(c[4] - c[1]) / area, (c[3] - c[0]) / area];
  const u = [0, 1, 2].map((n) => places[2 * (first + n)] * sheet.width * c[3 * n + 2]), v = [0, 1, 2].map((n) => places[2 * (first + n) + 1] * sheet.height * c[3 * n + 2]);
  const [u0, u1, u2, v0, v1, v2] = [u[0], u[1] - u[0], u[2] - u[0], v[0], v[1] - v[0], v[2] - v[0]], [n0, n1, n2] = [c[2], c[5] - c[2], c[8] - c[2]];
  for (let row = top; row <= bottom; row++) {
    for (let column = left; column <= right; column++) {
      const x = column + 0.5 - c[0], y = row + 0.5 - c[1], b1 = across1 * x + down1 * y, b2 = across2 * x + down2 * y;
      if (b1 < 0 || b2 < 0 || b1 + b2 > 1) continue;
      const near = n0 + n1 * b1 + n2 * b2, place = row * width + column;
      if (depth[place] >= near) continue;
      depth[place] = near;
      const spot = (((v0 + v1 * b1 + v2 * b2) / near) | 0) * sheet.width + (((u0 + u1 * b1 + u2 * b2) / near) | 0);
      pixels[place] = blend(pixels[place], sheet.pixels[spot], 218);
    }
  }
}
