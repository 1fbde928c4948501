"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const cases = new Map(data.cases.map((found) => [found.case, found]));
  const overview = document.getElementById("overview");
  const page = document.getElementById("case");
  const form = document.getElementById("filter");
  const text = document.getElementById("text");
  const area = document.getElementById("area");
  const subject = document.getElementById("subject");
  const chips = [...form.querySelectorAll("[name=verdict]")];
  const body = document.querySelector("#list tbody");
  const title = document.title;

  // Elements: whatever comes from the records is only ever set as text -----------------------------------------------

  const make = (namespace) => (tag, attributes = {}, ...children) => {
    const element = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
      else if (value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== undefined && child !== ""));
    return element;
  };
  const el = make(null);
  const svg = make("http://www.w3.org/2000/svg");
  const linkTo = (id) => `#/case/${encodeURIComponent(id)}`;
  const verdictOf = (found) => el("span", { class: `verdict ${found.verdict}` }, found.verdict);
  const number = (value) => (value === null || value === undefined ? "not finite" : value === 0 ? "0" : value >= 0.001 && value < 1000 ? value.toPrecision(3) : value.toExponential(2));

  // The list ---------------------------------------------------------------------------------------------------------

  const rows = data.cases.map((found, index) => ({
    found,
    row: body.rows[index],
    words: [found.case, found.area, found.verdict, found.why, found.subject].join(" ").toLowerCase(),
  }));
  let visible = rows;

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = new Set(chips.filter((chip) => chip.checked).map((chip) => chip.value));
    visible = rows.filter(({ found, row, words }) => {
      const shown = verdicts.has(found.verdict)
        && (!area.value || found.area === area.value)
        && (!subject.value || found.subject === subject.value)
        && wanted.every((word) => words.includes(word));
      if (row.hidden === shown) row.hidden = !shown;
      return shown;
    });
    document.getElementById("shown").textContent = `${visible.length} of ${rows.length}`;
  };

  const sort = (button) => {
    const key = button.dataset.key;
    const head = button.closest("th");
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    rows.sort(({ found: one }, { found: other }) =>
      (ascending ? 1 : -1) * (key === "seconds" ? one.seconds - other.seconds : one[key] < other[key] ? -1 : one[key] > other[key] ? 1 : 0));
    body.append(...rows.map(({ row }) => row));
    filter();
  };

  const applyAddress = (query) => {
    const found = new URLSearchParams(query);
    form.reset();
    text.value = found.get("text") ?? "";
    area.value = found.get("area") ?? "";
    subject.value = found.get("subject") ?? "";
    filter();
    form.scrollIntoView();
  };

  // One case ---------------------------------------------------------------------------------------------------------

  const section = (name, ...children) => el("section", {}, el("h2", {}, name), ...children);
  const pair = (item) => [el("span", { class: "old" }, item.old), el("span", { class: "new" }, item.new)];

  const because = (item) => {
    const change = data.changes[item.change];
    const link = /^https:\/\//.test(change.link) ? el("a", { href: change.link, rel: "noreferrer" }, change.link) : change.link;
    return el("p", { class: "because" }, `${change.class_}: ${change.reason} `, link);
  };

  // A path in steps, each with the separator behind it: `rank0: `, `config.`, `['a.b']`.
  const steps = (path) => path.match(/^rank\d+: |'[^']*'[./]?|\[[^\]]*\][./]?|\([^)]*\)[./]?|[^./['(]+[./]?|./g) ?? [path];

  const tree = (items) => {
    const root = new Map();
    for (const item of items) {
      let node = root;
      const path = steps(item.path);
      path.forEach((step, at) => {
        if (at === path.length - 1) node.set(`${step}\u0000${node.size}`, { step, item });
        else {
          if (!node.has(step)) node.set(step, { step, children: new Map() });
          node = node.get(step).children;
        }
      });
    }
    const draw = (node, before) => {
      const { step, item, children } = node;
      if (item) {
        const mark = item.undeclared ? el("span", { class: "undeclared" }, "not declared") : "";
        const kind = item.kind === "changed" ? "" : el("span", { class: "quiet" }, item.kind);
        return el("li", {}, el("div", { class: "leaf" }, before + step, " ", kind, " ", mark), ...pair(item), ...(item.change === undefined ? [] : [because(item)]));
      }
      if (children.size === 1) return draw(children.values().next().value, before + step);
      return el("li", {}, el("details", { open: "" }, el("summary", {}, before + step), el("ul", {}, ...[...children.values()].map((child) => draw(child, "")))));
    };
    return el("ul", { class: "tree" }, ...[...root.values()].map((node) => draw(node, "")));
  };

  const dotTitle = (what) => svg("title", {}, what);

  // Relative error of every module's outputs, in the order of execution, over the noise that repeats of old show.
  const moduleChart = (divergence, phase) => {
    const found = divergence.modules.filter((module) => module.phase === phase);
    if (!found.length) return undefined;
    const width = 900, height = 190, left = 48, top = 10, bottom = 22;
    const values = found.flatMap(({ error, noise }) => [error, noise]).filter((value) => value > 0).map(Math.log10);
    const [low, high] = values.length ? [Math.floor(Math.min(...values)), Math.ceil(Math.max(...values) + 0.01)] : [-1, 0];
    const y = (value) => (value > 0 ? top + ((high - Math.log10(value)) / (high - low)) * (height - top - bottom - 14) : height - bottom);
    const x = (at) => left + ((at + 0.5) / found.length) * (width - left - 8);
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `error of modules, ${phase}` });
    const lines = Math.max(1, Math.ceil((high - low) / 6));
    for (let decade = low; decade <= high; decade += lines) {
      chart.append(svg("line", { class: "axis", x1: left, x2: width - 8, y1: y(10 ** decade), y2: y(10 ** decade) }), svg("text", { x: left - 6, y: y(10 ** decade) + 4, "text-anchor": "end" }, `1e${decade}`));
    }
    chart.append(svg("line", { class: "axis", x1: left, x2: width - 8, y1: height - bottom, y2: height - bottom }), svg("text", { x: left - 6, y: height - bottom + 4, "text-anchor": "end" }, "0"));
    found.forEach(({ module, error, noise }, at) => {
      const first = module === divergence.module && phase === divergence.phase;
      if (noise !== null) chart.append(svg("path", { class: "noise", d: `M${x(at) - 4} ${y(noise)}h8` }, dotTitle(`${module}: noise ${number(noise)}`)));
      chart.append(svg("circle", { class: first ? "dot first" : "dot", cx: x(at), cy: y(error), r: first ? 5 : 3.5 }, dotTitle(`${module}: ${number(error)}${noise === null ? "" : `, noise ${number(noise)}`}`)));
      if (first) chart.append(svg("text", { x: x(at), y: height - 6, "text-anchor": at * 2 > found.length ? "end" : "start" }, `▲ first diverges: ${module}`));
    });
    return el("figure", {}, el("figcaption", { class: "quiet" }, `${phase}: relative error of each module's outputs in the order of execution (—: noise)`), chart);
  };

  const histogram = (profile) => {
    const width = 900, height = 150, bottom = 34;
    const highest = Math.max(...profile.histogram, 1);
    const each = width / profile.histogram.length;
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "histogram of differences" });
    profile.histogram.forEach((count, at) => {
      const tall = count ? Math.max(2, (Math.log10(count + 1) / Math.log10(highest + 1)) * (height - bottom - 16)) : 0;
      chart.append(svg("rect", { class: "bin", x: at * each + 2, width: each - 4, y: height - bottom - tall, height: tall, rx: 2 }, dotTitle(`${data.bins[at]}: ${count}`)));
      if (count) chart.append(svg("text", { x: (at + 0.5) * each, y: height - bottom - tall - 4, "text-anchor": "middle" }, count));
      chart.append(svg("text", { x: (at + 0.5) * each, y: height - 18, "text-anchor": "middle" }, data.bins[at]));
    });
    chart.append(svg("text", { x: 2, y: height - 3 }, "|new − old| over the root mean square of old; number of elements, logarithmic"));
    return chart;
  };

  const heatMap = (profile) => {
    const down = profile.map.length, across = profile.map[0].length;
    const width = 900, cell = Math.min(width / across, 150 / down, 40), left = 0;
    const values = profile.map.flat().filter((value) => value > 0).map(Math.log10);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const wide = Math.min(width / across, 40);
    const chart = svg("svg", { viewBox: `0 0 ${width} ${down * cell + 20}`, role: "img", "aria-label": "where in the tensor" });
    profile.map.forEach((line, row) => line.forEach((value, column) => {
      const strength = value > 0 ? 0.12 + 0.88 * (high > low ? (Math.log10(value) - low) / (high - low) : 1) : value === null ? 1 : 0.03;
      const at = `rows from ${Math.floor((row * profile.rows) / down)}, columns from ${Math.floor((column * profile.columns) / across)}`;
      chart.append(svg("rect", { class: value === null ? "odd" : "heat", x: left + column * wide, y: row * cell, width: wide - 0.5, height: cell - 0.5, "fill-opacity": strength.toFixed(3) }, dotTitle(`${at}: ${number(value)}`)));
    }));
    chart.append(svg("text", { x: 0, y: down * cell + 14 }, `${profile.rows} × ${profile.columns} elements; the largest |new − old| over rms in each cell, ${values.length ? `${number(10 ** low)} to ${number(10 ** high)}` : "all equal"}`));
    return chart;
  };

  const tensorDetail = (tensor) => [
    ...(tensor.message ? [el("pre", {}, tensor.message)] : []),
    ...(tensor.profile ? [histogram(tensor.profile), heatMap(tensor.profile)] : []),
  ];

  const FIRST = 12;
  const tensors = (found) => {
    const detail = el("div", { "aria-live": "polite" });
    const worst = Math.max(...found.map((tensor) => tensor.relative_error ?? 0), 1e-30);
    const choose = (row, tensor) => {
      for (const other of lines) other.removeAttribute("aria-selected");
      row.setAttribute("aria-selected", "true");
      detail.replaceChildren(...tensorDetail(tensor));
    };
    const lines = found.map((tensor) => {
      const error = tensor.relative_error;
      const share = error > 0 ? Math.max(1, 100 * (1 - Math.log10(worst / error) / 12)) : 0;
      const name = tensor.message ? el("button", { type: "button", on: { click: () => choose(row, tensor) } }, tensor.name) : el("span", { class: "id" }, tensor.name);
      const bar = el("span", { class: "bar" });
      bar.style.width = `${Math.max(0, share)}%`;
      const row = el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, bar), el("td", { class: "number" }, error === null ? "—" : number(error)), el("td", { class: "number quiet" }, `rank ${tensor.rank}`));
      return row;
    });
    const table = el("table", { class: "bars tensors" }, el("caption", {}, "relative error (bars: logarithmic)"), el("tbody", {}, ...lines.slice(0, FIRST)));
    const rest = lines.length > FIRST ? [el("details", {}, el("summary", {}, `${lines.length - FIRST} more tensors`), el("table", { class: "bars tensors" }, el("tbody", {}, ...lines.slice(FIRST))))] : [];
    if (found[0].message) choose(lines[0], found[0]);
    return section(`Tensors that differ (${found.length})`, table, ...rest, detail);
  };

  const sideOf = (side) => el("div", {},
    el("h3", {}, `${side.side}: ${side.stack}`, side.seconds ? el("span", { class: "quiet" }, ` ${side.seconds.toFixed(2)} s`) : "", side.golden ? " (golden)" : ""),
    ...(side.fault ? [el("p", { class: "undeclared" }, side.fault)] : []),
    ...(side.raised ? [el("p", {}, "raised ", el("code", {}, side.raised))] : []),
    ...(side.entered ? [el("p", { class: "quiet" }, "entered ", ...side.entered.flatMap((name, at) => [at ? ", " : "", el("code", {}, name)]))] : []),
    ...(side.output ? [el("details", {}, el("summary", {}, "last output"), el("pre", {}, side.output))] : []));

  const show = (found) => {
    const at = visible.findIndex((row) => row.found === found);
    const neighbour = (step, label) => {
      const other = at < 0 ? undefined : visible[at + step];
      return other ? [el("a", { href: linkTo(other.found.case), rel: step > 0 ? "next" : "prev" }, label)] : [];
    };
    const parts = [
      el("nav", { "aria-label": "cases" }, el("a", { href: "#/" }, "← all cases"), ...neighbour(-1, "previous (k)"), ...neighbour(1, "next (j)")),
      el("h1", { class: "id" }, found.case),
      el("p", {}, verdictOf(found), found.triage ? ` (${found.triage})` : "", ` ${found.why ?? ""}`),
      el("p", { class: "facts" }, [found.subject, `area ${found.area}`, found.layout && `layout ${found.layout}`, `${(found.seconds ?? 0).toFixed(2)} s`].filter(Boolean).join(" · ")),
      ...Object.entries(found.commands ?? {}).map(([why, command]) => el("p", { class: "command" }, el("span", {}, why), el("code", {}, command))),
    ];
    if (found.brief) parts.push(el("p", { class: "note" }, "Told in brief, to keep this file small: the command above shows all of it, and so do the records."));
    if (found.divergence?.why) {
      parts.push(section("First divergence", el("p", {}, found.divergence.why), ...(found.divergence.detail.length ? [el("pre", {}, found.divergence.detail.join("\n"))] : []),
        ...["forward", "backward"].map((phase) => moduleChart({ modules: [], ...found.divergence }, phase)).filter(Boolean)));
    }
    if (found.tensors) parts.push(tensors(found.tensors));
    if (found.differences) parts.push(section(`Differences (${found.differences.length + (found.more ?? 0)})`, tree(found.differences), ...(found.more ? [el("p", { class: "quiet" }, `… and ${found.more} more, in the records`)] : [])));
    if (found.stale) parts.push(section("Declared, but gone", ...found.stale.map((item) => el("div", {}, el("code", {}, item.path), because(item)))));
    for (const [name, label] of [["masked", "Masked by the lane"], ["drift", "Drift of the golden"]]) {
      if (found[name]) parts.push(section(label, tree(found[name])));
    }
    if (found.configs) {
      parts.push(section(`Fields of the resolved configs that differ (${found.configs.length})`, el("div", { class: "scroll" }, el("table", {},
        el("tbody", {}, ...found.configs.map((row) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, row.field)), el("td", {}, ...pair(row)))))))));
    }
    if (found.sides) parts.push(section("Sides", el("div", { class: "two" }, ...found.sides.map(sideOf))));
    if (found.standIns) {
      parts.push(section("Replaced by the lane", el("details", {}, el("summary", {}, `${found.standIns.length} stand-ins`), el("ul", {}, ...found.standIns.map((place) => {
        const { replaced, by, reason } = data.standIns[place];
        return el("li", {}, el("code", {}, replaced), ` by ${by}: ${reason}`);
      })))));
    }
    page.replaceChildren(...parts);
  };

  // Address and keys -------------------------------------------------------------------------------------------------

  let opened = null;
  const route = () => {
    const [, kind, rest = ""] = location.hash.match(/^#\/(case\/|\?)?(.*)$/s) ?? [];
    const found = kind === "case/" ? cases.get(decodeURIComponent(rest)) : undefined;
    overview.hidden = found !== undefined;
    page.hidden = found === undefined;
    document.title = found ? `${found.case} · ${title}` : title;
    if (found) {
      show(found);
      window.scrollTo(0, 0);
      page.focus({ preventScroll: true });
    } else {
      page.replaceChildren();
      if (kind === "?") applyAddress(rest);
      else if (opened) {
        const { row } = rows.find((one) => one.found === opened);
        row.querySelector("a").focus({ preventScroll: true });
        row.scrollIntoView({ block: "center" });
      }
    }
    opened = found ?? null;
  };

  const move = (step) => {
    if (opened) {
      const at = visible.findIndex((row) => row.found === opened);
      const next = visible[at + step];
      if (at >= 0 && next) location.hash = linkTo(next.found.case);
      return;
    }
    const at = visible.findIndex(({ row }) => row.contains(document.activeElement));
    const next = visible[at < 0 ? 0 : Math.min(visible.length - 1, Math.max(0, at + step))];
    next?.row.querySelector("a").focus();
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === text;
    if (event.key === "Escape") {
      if (opened) location.hash = "#/";
      else if (typing) { text.value = ""; filter(); text.blur(); }
    } else if (event.key === "/" && !typing && !opened) {
      event.preventDefault();
      text.focus();
    } else if (typing && event.key === "ArrowDown") {
      event.preventDefault();
      move(0);
    } else if (!typing && event.target.tagName !== "SELECT" && (event.key === "j" || event.key === "k")) {
      move(event.key === "j" ? 1 : -1);
    }
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); visible[0]?.row.querySelector("a").click(); });
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  document.querySelector("#list thead").addEventListener("click", (event) => { if (event.target.dataset.key) sort(event.target); });
  window.addEventListener("hashchange", route);
  filter();
  route();
})();
