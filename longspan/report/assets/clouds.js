// Clouds of points on canvases, rotated by pointer, touch and keyboard; those of one sample turn together.
"use strict";

const START = { yaw: 0.7, pitch: 0.35 };
const HUES = { partial: "--hue-2", completed: "--hue-1", true: "--hue-3" };

function pointsOf(name) {
  const text = atob(JSON.parse(document.getElementById(name).textContent));
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  return new Int16Array(bytes.buffer);
}

class Shape {
  constructor(element) {
    this.angle = { ...START };
    this.clouds = [...element.querySelectorAll("canvas.cloud")].map((canvas) => ({ canvas, points: null }));
    for (const { canvas } of this.clouds) this.follow(canvas);
    element.querySelector(".three").addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] }[event.key];
      if (!by) return;
      event.preventDefault();
      this.turn(...by);
    });
    new IntersectionObserver((entries) => {
      this.visible = entries.at(-1).isIntersecting;
      if (this.visible) this.draw();
    }, { rootMargin: "200px" }).observe(element);
    new ResizeObserver(() => this.draw()).observe(element);
  }

  follow(canvas) {
    let last = null;
    canvas.addEventListener("pointerdown", (event) => {
      last = event;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      this.turn((event.clientX - last.clientX) * 0.012, (event.clientY - last.clientY) * 0.012);
      last = event;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { last = null; });
    canvas.addEventListener("dblclick", () => { this.angle = { ...START }; this.draw(); });
  }

  turn(yaw, pitch) {
    this.angle.yaw += yaw;
    this.angle.pitch = Math.max(-1.5, Math.min(1.5, this.angle.pitch + pitch));
    this.draw();
  }

  draw() {
    if (!this.visible || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const cloud of this.clouds) paint(cloud, this.angle);
    });
  }
}

// y points up; points that are near are larger and stronger.
function paint(cloud, { yaw, pitch }) {
  const { canvas } = cloud;
  cloud.points ??= pointsOf(canvas.dataset.points);
  const sharp = window.devicePixelRatio || 1;
  const size = Math.round(canvas.clientWidth * sharp);
  if (canvas.width !== size) canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, size, size);
  context.fillStyle = getComputedStyle(canvas).color;
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  const scale = size / 2 / 32767 / 1.55;
  const dot = sharp * Math.min(2.2, Math.sqrt(3 * 2048 / cloud.points.length));  // few points are drawn larger
  for (let i = 0; i < cloud.points.length; i += 3) {
    const [x, y, z] = [cloud.points[i], cloud.points[i + 1], cloud.points[i + 2]];
    const across = cy * x + sy * z;
    const away = cy * z - sy * x;
    const up = cp * y - sp * away;
    const near = (cp * away + sp * y) / 32767;
    const side = dot * (1.25 + 0.45 * near);
    context.globalAlpha = Math.max(0.2, Math.min(1, 0.65 + 0.4 * near));
    context.fillRect(size / 2 + across * scale - side / 2, size / 2 - up * scale - side / 2, side, side);
  }
  canvas.dataset.yaw = yaw.toFixed(2);
  canvas.dataset.pitch = pitch.toFixed(2);
}

for (const canvas of document.querySelectorAll("canvas.cloud")) {
  canvas.style.color = `var(${HUES[canvas.dataset.part]})`;
}
const shapes = [...document.querySelectorAll(".shape")].map((element) => new Shape(element));
const repaint = () => shapes.forEach((shape) => shape.draw());
new MutationObserver(repaint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
