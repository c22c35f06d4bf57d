"use strict";
// Draws each chart with uPlot over the SVG that the page has, with the values under the pointer in its legend.
(() => {
  const panels = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e7)) return String(Number(value.toPrecision(3)).toExponential());
    return String(Number(value.toPrecision(5)));
  };
  const shown = (value) => (value === null || value === undefined ? "\u2013" : short(value));
  const whole = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power));
  const sync = uPlot.sync("steps");
  const charts = [];

  const options = (panel, width) => ({
    width,
    height: 240,
    cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false } },
    scales: { x: { time: false } },
    legend: { live: true, markers: { dash: (_, index) => (panel.series[index - 1].other ? "dashed" : "solid") } },
    axes: [
      {
        stroke: color("--soft"), size: 34, grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") },
        incrs: whole.sort((one, other) => one - other), values: (_, ticks) => ticks.map(String),
      },
      {
        stroke: color("--soft"), size: 62, grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") },
        values: (_, ticks) => ticks.map(shown),
      },
    ],
    series: [
      { label: "step", value: (_, step) => shown(step) },
      ...panel.series.map((one) => ({
        label: one.name,
        stroke: one.limit ? color("--soft") : color(`--s${one.colour}`),
        width: 1.6,
        dash: one.limit ? [8, 4] : one.other ? [5, 3] : undefined,
        points: { show: panel.steps.length < 2 || undefined },
        spanGaps: true,
        value: (_, value) => shown(value),
      })),
    ],
    hooks: {
      // Away from the chart its legend has the last step.
      setCursor: [(chart) => chart.cursor.idx === null && chart.setLegend({ idx: panel.steps.length - 1 }, false)],
      draw: [
        (chart) => {
          const pen = chart.ctx;
          pen.save();
          pen.strokeStyle = color("--bad");
          pen.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
          for (const step of panel.marks) {
            const x = chart.valToPos(step, "x", true);
            if (x < chart.bbox.left || x > chart.bbox.left + chart.bbox.width) continue;
            pen.beginPath();
            pen.moveTo(x, chart.bbox.top);
            pen.lineTo(x, chart.bbox.top + chart.bbox.height);
            pen.stroke();
          }
          pen.restore();
        },
      ],
    },
  });

  const draw = (place, panel) => {
    const width = Math.max(place.clientWidth, 200);
    const data = [panel.steps, ...panel.series.map((one) => one.values)];
    const chart = new uPlot(options(panel, width), data, place);
    chart.setLegend({ idx: panel.steps.length - 1 }, false);
    return { place, panel, chart };
  };

  for (const panel of panels) {
    const figure = document.getElementById(`chart-${panel.id}`);
    const place = document.createElement("div");
    figure.insertBefore(place, figure.querySelector("figcaption"));
    figure.classList.add("live");
    charts.push(draw(place, panel));
  }

  addEventListener("resize", () => {
    for (const one of charts) one.chart.setSize({ width: Math.max(one.place.clientWidth, 200), height: 240 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((one, index) => {
      one.chart.destroy();
      charts[index] = draw(one.place, one.panel);
    });
  });
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
  });
})();
