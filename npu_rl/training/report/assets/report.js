"use strict";
// Draws each chart with uPlot, with the values under the pointer in its legend, and offers the steps as a CSV file.
(() => {
  const { steps, marks, panels } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (place) => `hsl(${(212 + 137.5 * place) % 360} 75% ${dark ? 70 : 40}%)`;
  const shown = (value) => {
    if (typeof value !== "number") return value ?? "\u2013"; // NaN and infinity are text
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e7)) return String(Number(value.toPrecision(3)).toExponential());
    return String(Number(value.toPrecision(5)));
  };
  const wholes = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power));

  const markAlarms = (chart) => {
    const { ctx: pen, bbox } = chart;
    pen.save();
    pen.strokeStyle = css("--bad");
    pen.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const step of marks) {
      const x = chart.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      pen.beginPath();
      pen.moveTo(x, bbox.top);
      pen.lineTo(x, bbox.top + bbox.height);
      pen.stroke();
    }
    pen.restore();
  };

  const draw = (place, series) => {
    const last = series.reduce((found, one) => (one.limit ? found : Math.max(found, one.values.findLastIndex((value) => value !== null))), 0);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    const options = {
      width: Math.max(place.clientWidth, 200),
      height: 240,
      cursor: { sync: { key: "steps", setSeries: false }, drag: { x: true, y: false } },
      scales: { x: { time: false } },
      legend: { markers: { dash: (_, index) => (series[index - 1].other || series[index - 1].limit ? "dashed" : "solid") } },
      axes: [
        { ...axis, size: 34, incrs: wholes, values: (_, ticks) => ticks.map(String) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map(shown) },
      ],
      series: [
        { label: "step", value: (_, step) => shown(step) },
        ...series.map((one) => ({
          label: one.name,
          stroke: one.limit ? css("--soft") : colour(one.colour),
          width: 1.6,
          dash: one.limit ? [8, 4] : one.other ? [5, 3] : undefined,
          points: { show: steps.length < 2 || undefined },
          spanGaps: true,
          value: (_, __, ___, step) => shown(one.values[step]),
        })),
      ],
      hooks: {
        // Away from the chart its legend has the last step.
        setCursor: [(chart) => chart.cursor.idx === null && chart.setLegend({ idx: last }, false)],
        draw: [markAlarms],
      },
    };
    const drawn = series.map((one) => one.values.map((value) => (typeof value === "number" ? value : null)));
    const chart = new uPlot(options, [steps, ...drawn], place);
    chart.setLegend({ idx: last }, false);
    return chart;
  };

  for (const [id, series] of Object.entries(panels)) {
    const figure = document.getElementById(`chart-${id}`);
    const place = document.createElement("div");
    figure.insertBefore(place, figure.querySelector("figcaption"));
    const chart = draw(place, series);
    addEventListener("resize", () => chart.setSize({ width: Math.max(place.clientWidth, 200), height: 240 }));
  }
  for (const one of document.querySelectorAll("section")) {
    const link = Object.assign(document.createElement("a"), { href: `#${one.id}`, textContent: one.firstElementChild.textContent });
    document.querySelector("nav").append(link, " ");
  }
  const link = document.getElementById("csv");
  if (link) {
    const columns = Object.values(panels).flat().filter((one) => one.key && !one.other);
    const rows = steps.map((step, place) => [step, ...columns.map((one) => one.values[place] ?? "")]);
    const known = rows.filter((row) => row.slice(1).some((value) => value !== ""));
    const text = [["step", ...columns.map((one) => one.key)], ...known]
      .map((row) => row.map((cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(","))
      .join("\n");
    link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    link.hidden = false;
  }
})();
