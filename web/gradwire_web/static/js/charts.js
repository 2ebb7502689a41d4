// Draws the charts of a run when they come near; library and figures are fetched only then.

const REFRESH_MS = 5000;
const FONT = getComputedStyle(document.body).fontFamily;
const charts = new Map([...document.querySelectorAll(".chart")].map((figure) => [figure, { isNear: false, drawnAt: 0 }]));
let library = null;

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function load(address) {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      library = null;
      reject(new Error("the chart library cannot be loaded"));
    });
    document.head.append(script);
  });
  return library;
}

async function draw(figure) {
  const state = charts.get(figure);
  const area = figure.querySelector(".chart-area");
  const wanted = theme();
  state.drawnAt = Date.now();
  try {
    const [plotly, answer] = await Promise.all([
      load(area.dataset.library),
      fetch(`${figure.dataset.src}&theme=${wanted}`, { headers: { Accept: "application/json" } }),
    ]);
    if (!answer.ok) {
      throw new Error(`status ${answer.status}`);
    }
    const { data, layout } = await answer.json();
    if (wanted !== theme()) {
      // The theme has changed meanwhile, and with it another drawing is under way.
      return;
    }
    area.querySelector("noscript")?.remove();
    if (area.classList.contains("failed")) {
      area.textContent = "";
      area.classList.remove("failed");
    }
    layout.font = { ...layout.font, family: FONT };
    await plotly.react(area, data, layout, { responsive: true, displayModeBar: false });
  } catch {
    if (!area.classList.contains("js-plotly-plot")) {
      area.classList.add("failed");
      area.textContent = area.dataset.failed;
    }
  }
}

function drawNear() {
  for (const [figure, state] of charts) {
    if (state.isNear && Date.now() - state.drawnAt >= REFRESH_MS) {
      draw(figure);
    }
  }
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const state = charts.get(target);
      state.isNear = isIntersecting;
      if (isIntersecting && Date.now() - state.drawnAt >= REFRESH_MS) {
        draw(target);
      }
    }
  },
  { rootMargin: "400px" },
);
for (const figure of charts.keys()) {
  observer.observe(figure);
}
document.addEventListener("gradwire:fresh", drawNear);
document.addEventListener("gradwire:theme", () => {
  // Those far away follow when they come near.
  for (const state of charts.values()) {
    state.drawnAt = 0;
  }
  drawNear();
});
