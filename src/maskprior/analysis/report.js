"use strict";
const stops = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
function color(part) {
  const place = Math.min(part * (stops.length - 1), stops.length - 1 - 1e-9);
  const low = Math.floor(place), rest = place - low;
  return stops[low].map((value, channel) => value + rest * (stops[low + 1][channel] - value));
}
function decode(canvas) {
  if (!canvas.cells) {
    const bytes = atob(canvas.dataset.cells);
    canvas.cells = Uint8Array.from(bytes, letter => letter.charCodeAt(0));
    canvas.steps = JSON.parse(canvas.dataset.steps);
    canvas.names = JSON.parse(canvas.dataset.names);
  }
}
function paint(canvas, share) {
  decode(canvas);
  canvas.frame = Math.round(share * (canvas.steps.length - 1));
  const size = canvas.width * canvas.height, context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let cell = 0; cell < size; cell++) {
    const rgb = color(canvas.cells[canvas.frame * size + cell] / 255);
    image.data.set([...rgb, 255], 4 * cell);
  }
  context.putImageData(image, 0, 0);
}
function describe(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const key = Math.min(canvas.width - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * canvas.width)));
  const query = Math.min(canvas.height - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * canvas.height)));
  const value = canvas.cells[canvas.frame * canvas.width * canvas.height + query * canvas.width + key] / 255;
  const name = index => canvas.names[index] ?? index;
  return `${name(query)} \u2192 ${name(key)}: ${(100 * value * value).toFixed(1)} %`;
}
for (const canvas of document.querySelectorAll("canvas")) {
  paint(canvas, 0);
  canvas.addEventListener("pointermove", event => { canvas.title = describe(canvas, event); });
}
for (const browser of document.querySelectorAll(".browser")) {
  const time = browser.querySelector(".time"), moment = browser.querySelector(".moment");
  const play = browser.querySelector(".play"), canvases = browser.querySelectorAll("canvas");
  let timer = 0;
  function show() {
    const share = Number(time.max) > 0 ? Number(time.value) / Number(time.max) : 0;
    let step = 0;
    for (const canvas of canvases) {
      paint(canvas, share);
      step = Math.max(step, canvas.steps[canvas.frame]);
    }
    moment.textContent = `step ${step}`;
  }
  function stop() { clearInterval(timer); timer = 0; play.textContent = "\u25b6"; }
  time.addEventListener("input", () => { stop(); show(); });
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    play.textContent = "\u275a\u275a";
    timer = setInterval(() => {
      time.value = (Number(time.value) + 1) % (Number(time.max) + 1);
      show();
    }, 800);
  });
  show();
}
