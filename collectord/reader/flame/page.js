// SPDX-License-Identifier: Apache-2.0
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const boxes = data.boxes;
const count = boxes.frame.length;
const canvas = document.getElementById("graph");
const context = canvas.getContext("2d");
const told = document.getElementById("told");
const found = document.getElementById("found");
const search = document.getElementById("search");
const scroll = document.getElementById("scroll");
const ROW = 18;
const LEAST = 0.3; // pixels
let rows = 2;
for (let i = 0; i < count; i++) rows = Math.max(rows, boxes.depth[i] + 2);
let matches = null; // by the number of the frame
let zoomed = -1; // the box that fills the width
let drawn = []; // what is under the pointer: {box, left, right, top}

function share(value) {
  return data.total ? value / data.total : 0;
}

function percent(part) {
  return (100 * part).toFixed(2) + "%";
}

function describe(box) {
  if (box < 0) return "all: " + data.total.toLocaleString("en") + " " + data.unit;
  const value = boxes.value[box];
  let text = data.names[boxes.frame[box]] + ": " + value.toLocaleString("en") + " " + data.unit +
    ", " + percent(share(value));
  if (data.before !== null) text += ", before " + percent(boxes.before[box] / (data.before || 1));
  const file = data.modules[boxes.frame[box]];
  return file ? text + " (" + file + ")" : text;
}

function fill(box) {
  if (box < 0) return "#ddd";
  const frame = boxes.frame[box];
  if (matches !== null && matches[frame]) return "#e060e0";
  if (data.before === null) return data.colours[frame];
  const more = share(boxes.value[box]) - boxes.before[box] / (data.before || 1);
  if (Math.abs(more) < 0.0005) return "hsl(0,0%,88%)";
  const light = 92 - 37 * Math.min(Math.abs(more) / 0.1, 1);
  return "hsl(" + (more > 0 ? 5 : 215) + ",80%," + light + "%)";
}

function put(box, depth, left, right, width) {
  const from = Math.max(left, 0);
  const to = Math.min(right, width);
  if (to - from < LEAST) return;
  const top = (rows - 1 - depth) * ROW;
  context.fillStyle = fill(box);
  context.fillRect(from, top, Math.max(to - from - 0.5, LEAST), ROW - 1);
  drawn.push({ box, left: from, right: to, top });
  const letters = Math.floor((to - from - 6) / 7.3);
  if (letters < 3) return;
  const name = box < 0 ? describe(box) : data.names[boxes.frame[box]];
  context.fillStyle = "#000";
  context.fillText(name.length > letters ? name.slice(0, letters - 1) + "…" : name, from + 3, top + 13);
}

function draw() {
  const width = scroll.clientWidth - 20;
  const dense = window.devicePixelRatio || 1;
  canvas.width = width * dense;
  canvas.height = rows * ROW * dense;
  canvas.style.height = rows * ROW + "px";
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.font = "12px monospace";
  drawn = [];
  const start = zoomed < 0 ? 0 : boxes.start[zoomed];
  const scale = width / ((zoomed < 0 ? data.total : boxes.value[zoomed]) || 1);
  put(-1, 0, 0, width, width);
  for (let i = 0; i < count; i++) {
    const left = (boxes.start[i] - start) * scale;
    put(i, boxes.depth[i] + 1, left, left + boxes.value[i] * scale, width);
  }
}

function under(event) {
  const place = canvas.getBoundingClientRect();
  const x = event.clientX - place.left;
  const y = event.clientY - place.top;
  return drawn.find((one) => one.left <= x && x < one.right && one.top <= y && y < one.top + ROW);
}

function zoom(box) {
  zoomed = box;
  draw();
}

function look() {
  const word = search.value;
  matches = null;
  found.textContent = "";
  if (word) {
    let pattern;
    try {
      pattern = new RegExp(word, "i");
    } catch {
      pattern = { test: (name) => name.includes(word) };
    }
    matches = data.names.map((name) => pattern.test(name));
    let sum = 0;
    let end = 0; // of what is counted: a match above another one is part of it
    for (let i = 0; i < count; i++) {
      if (matches[boxes.frame[i]] && boxes.start[i] >= end) {
        sum += boxes.value[i];
        end = boxes.start[i] + boxes.value[i];
      }
    }
    found.textContent = percent(share(sum)) + " matches";
  }
  draw();
}

canvas.addEventListener("mousemove", (event) => {
  const one = under(event);
  told.textContent = one ? describe(one.box) : "";
});
canvas.addEventListener("click", (event) => {
  const one = under(event);
  if (one) zoom(one.box);
});
document.getElementById("reset").addEventListener("click", () => zoom(-1));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    search.value = "";
    zoom(-1);
    look();
  }
});
search.addEventListener("input", look);
window.addEventListener("resize", draw);
draw();
scroll.scrollTop = scroll.scrollHeight;
