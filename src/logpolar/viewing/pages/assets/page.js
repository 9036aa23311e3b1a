"use strict";
// Shared by all pages: the data inside the page, and small helpers. Text goes into elements as text, never as markup.

const TYPES = { f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array };
const data = JSON.parse(document.getElementById("data").textContent);

function unpack(packed) {
  const text = atob(packed.data), bytes = new Uint8Array(text.length);
  for (let n = 0; n < bytes.length; n++) bytes[n] = text.charCodeAt(n);
  return new TYPES[packed.type](bytes.buffer);
}

function element(id) {
  return document.getElementById(id);
}

function add(parent, tag, text = "") {
  const child = document.createElement(tag);
  child.textContent = text;
  parent.append(child);
  return child;
}

function loadPicture(source) {
  return new Promise((resolve, reject) => {
    const picture = new Image();
    picture.onload = () => resolve(picture);
    picture.onerror = () => reject(new Error("a picture inside this page is damaged"));
    picture.src = source;
  });
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function press(id, on) {
  element(id).setAttribute("aria-pressed", String(on));
}

// A function that has ``draw`` called before the next frame, once however often it is called itself.
function scheduled(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame((now) => { waiting = false; draw(now); });
  };
}

// While a view moves, so much of it is drawn as the browser can show fluently, and at least ``fewest``; all of it when
// the view has come to rest, after which ``redraw`` is called.
function makePace(fewest, redraw) {
  const slow = 28; // milliseconds between frames: at 60 a second, one was missed
  let most = Infinity, limit = Infinity, before = 0, timer = 0;
  const pace = {
    moving: false,
    moved() {
      if (!pace.moving) before = 0;
      pace.moving = true;
      clearTimeout(timer);
      timer = setTimeout(pace.rest, 250);
      redraw();
    },
    rest() { pace.moving = false; redraw(); },
    // How many of ``total`` to draw in the frame at ``now``.
    amount(total, now) {
      if (!pace.moving) return total;
      const spent = now - before, drawn = Math.min(most, total);
      if (before && spent > slow) {
        limit = 0.9 * drawn; // for a while, or every few frames would be too slow again
        most = Math.max(fewest, 0.6 * drawn);
      } else if (before && spent > 0) {
        limit *= 1.003;
        most = Math.max(fewest, Math.min(1.1 * drawn, limit));
      }
      before = now;
      return Math.min(most, total);
    },
  };
  return pace;
}

// Keys by name, unless they are typed into a control or belong to the browser.
function followKeys(actions) {
  document.addEventListener("keydown", (event) => {
    const tag = event.target.tagName, moves = event.key.startsWith("Arrow");
    if (tag === "SELECT" || (tag === "INPUT" && (moves || event.target.type === "search"))) return;
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
    if (actions[event.key](event) !== false) event.preventDefault();
  });
}

// Mouse, pen and fingers on a canvas: ``drag`` gets the way of all pointers and their number, ``zoom`` a place and a
// factor, ``tap`` a place.
function followPointers(canvas, { drag, zoom, tap }) {
  const pointers = new Map();
  let moved = 0;
  const position = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(...position(event), 2 ** (-event.deltaY / 300)); }, { passive: false });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, position(event)); if (pointers.size === 1) moved = 0; });
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()], now = position(event), old = pointers.get(event.pointerId);
    pointers.set(event.pointerId, now);
    const after = [...pointers.values()], part = 1 / after.length;
    drag((now[0] - old[0]) * part, (now[1] - old[1]) * part, event, after.length);
    moved += Math.hypot(now[0] - old[0], now[1] - old[1]);
    if (after.length === 2) {
      const gap = (two) => Math.hypot(two[0][0] - two[1][0], two[0][1] - two[1][1]) || 1;
      zoom((after[0][0] + after[1][0]) / 2, (after[0][1] + after[1][1]) / 2, gap(after) / gap(before));
    }
  });
  const end = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved < 4) tap(...position(event));
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
}

function showFooter() {
  element("command").textContent = data.command;
  element("versions").textContent = data.versions;
}

// A canvas with as many pixels as the screen gives it; its context draws in CSS pixels.
function fitCanvas(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const density = window.devicePixelRatio || 1;
  const size = [Math.max(Math.round(width * density), 1), Math.max(Math.round(height * density), 1)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
