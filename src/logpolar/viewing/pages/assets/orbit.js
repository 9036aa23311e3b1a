// A camera that orbits a target, y up; matrices are column by column, as WebGL takes them.

const FIELD = Math.PI / 4; // of view, vertical

const orbit = { yaw: 0, pitch: 0, distance: 1, target: [0, 0, 0] };

const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const along = (a, b, t) => [a[0] + t * b[0], a[1] + t * b[1], a[2] + t * b[2]];
const unit = (a) => { const length = Math.hypot(...a) || 1; return a.map((value) => value / length); };

// Axes of the view: to the right, up, and back towards the viewer.
function orbitAxes() {
  const { yaw, pitch } = orbit;
  const back = [Math.cos(pitch) * Math.sin(yaw), Math.sin(pitch), Math.cos(pitch) * Math.cos(yaw)];
  const right = [Math.cos(yaw), 0, -Math.sin(yaw)];
  return [right, cross(back, right), back];
}

function orbitMatrix(width, height) {
  const axes = orbitAxes(), eye = along(orbit.target, axes[2], orbit.distance);
  const near = orbit.distance / 100, far = orbit.distance + 200, scale = 1 / Math.tan(FIELD / 2);
  const factors = [(scale * height) / width, scale, (near + far) / (near - far)];
  const rows = axes.map((axis, n) => [...axis, -dot(axis, eye)].map((value) => value * factors[n]));
  rows[2][3] += (2 * near * far) / (near - far);
  rows.push([...axes[2].map((value) => -value), dot(axes[2], eye)]);
  return new Float32Array([0, 1, 2, 3].flatMap((column) => rows.map((row) => row[column])));
}

// Pixels of a point, and its distance along the view; null behind the viewer.
function toPixels(matrix, point, width, height) {
  const [x, y, , w] = [0, 1, 2, 3].map((row) => matrix[row] * point[0] + matrix[4 + row] * point[1] + matrix[8 + row] * point[2] + matrix[12 + row]);
  return w > 0 ? [(x / w + 1) * (width / 2), (1 - y / w) * (height / 2), w] : null;
}

function turn(dx, dy) {
  orbit.yaw -= dx;
  orbit.pitch = Math.max(-1.55, Math.min(orbit.pitch + dy, 1.55));
}

// Moves the target with the pointer, by fractions of the view's height.
function pan(dx, dy) {
  const [right, up] = orbitAxes(), reach = 2 * orbit.distance * Math.tan(FIELD / 2);
  orbit.target = along(along(orbit.target, right, -dx * reach), up, dy * reach);
}

function approach(factor) {
  orbit.distance = Math.max(1e-3, Math.min(orbit.distance / factor, 100));
}

// The view from a place towards a direction, with the target at a distance.
function lookAlong(place, forward, distance) {
  orbit.pitch = Math.max(-1.55, Math.min(Math.asin(-forward[1]), 1.55));
  orbit.yaw = Math.atan2(-forward[0], -forward[2]);
  orbit.distance = distance;
  orbit.target = along(place, forward, distance);
}

// The view, in the direction it has, of most points (x, y, z after each other) and places: a few distant ones would
// shrink everything else to a dot.
function enclose(points, places, aspect) {
  const axes = orbitAxes(), all = [Array.from({ length: points.length / 3 }, (_, n) => points.subarray(3 * n, 3 * n + 3)), places];
  const range = (value) => {
    const ends = all.map((each, n) => {
      const sorted = each.map(value).sort((a, b) => a - b), left = Math.floor([0.02, 0.07][n] * (sorted.length - 1));
      return sorted.length ? [sorted[left], sorted[sorted.length - 1 - left]] : [Infinity, -Infinity];
    });
    return [Math.min(ends[0][0], ends[1][0]), Math.max(ends[0][1], ends[1][1])];
  };
  const middles = [0, 1].map((n) => range((place) => dot(place, axes[n])).reduce((low, high) => (low + high) / 2));
  const reach = 0.9 * Math.tan(FIELD / 2);
  const needed = range((place) => {
    const [x, y, z] = axes.map((axis) => dot(place, axis));
    return z + Math.max(Math.abs(x - middles[0]) / aspect, Math.abs(y - middles[1])) / reach;
  });
  orbit.target = along(along([0, 0, 0], axes[0], middles[0]), axes[1], middles[1]);
  orbit.distance = Math.max(needed[1], 1e-3);
}
