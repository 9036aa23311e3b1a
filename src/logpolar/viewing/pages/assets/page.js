"use strict";
// Shared by all pages: the data inside the page, and small helpers. Text goes into elements as text, never as markup.

const TYPES = { f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array };
const data = JSON.parse(document.getElementById("data").textContent);

function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
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
  return getComputedStyle(document.documentElement).getPropertyValue(name);
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
