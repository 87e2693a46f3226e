"use strict";
(() => {
  const PERIOD = 2000, SAMPLES = 60, LIMIT = 50;
  const $ = (id) => document.getElementById(id);
  let offset = 0, end = 0, timer = 0, running = null, since = null;
  // The last two minutes of what is shown, by name; what is not shown any more is forgotten.
  let history = new Map();

  // All text from the server becomes text nodes.
  function make(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children.filter((child) => child !== null).map((child) => child instanceof Node ? child : String(child)));
    return node;
  }
  const number = (value) => value === null || value === undefined ? "–" : Number(value).toLocaleString("en");
  const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
  function duration(seconds) {
    if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
    if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  }
  function bytes(value) {
    const units = ["B", "kB", "MB", "GB"];
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return `${value.toFixed(value < 10 && unit > 0 ? 1 : 0)} ${units[unit]}/s`;
  }

  function curve(values, what) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const most = Math.max(1, ...values);
    const last = values.length ? values[values.length - 1] : 0;
    svg.setAttribute("viewBox", "0 0 59 20");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${what}: now ${number(last)}, most ${number(Math.max(0, ...values))} of ${values.length} samples`);
    const base = document.createElementNS(svg.namespaceURI, "line");
    for (const [key, value] of [["x1", 0], ["x2", 59], ["y1", 19], ["y2", 19]]) base.setAttribute(key, value);
    const line = document.createElementNS(svg.namespaceURI, "polyline");
    const start = SAMPLES - values.length;
    line.setAttribute("points", values.map((value, index) => `${start + index},${(18 - 16 * value / most).toFixed(1)}`).join(" "));
    svg.append(base, line);
    return svg;
  }
  function sampled(next, key, value) {
    const values = (history.get(key) || []).concat(value).slice(-SAMPLES);
    next.set(key, values);
    return values;
  }

  function table(caption, heads, rows) {
    const head = (text, index) => make("th", {scope: "col", class: index === 0 ? "" : heads[index].class || ""}, text.text || text);
    const cell = (value, index) => make(index === 0 ? "th" : "td",
      Object.assign(index === 0 ? {scope: "row"} : {}, {class: heads[index].class || ""}), value);
    return make("table", {},
      caption ? make("caption", {}, ...caption) : null,
      make("thead", {}, make("tr", {}, ...heads.map(head))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))));
  }

  function frontend(of, next, mode) {
    const key = of.key, counts = of.counters;
    const says = [make("b", {}, key)];
    if (of.port) says.push(make("span", {}, of.port));
    says.push(make("span", {}, of.kinds.join(", ")));
    if (of.policy !== "Cluster") says.push(make("span", {}, `policy ${of.policy}`));
    if (of.affinitySeconds) says.push(make("span", {}, `affinity ${duration(of.affinitySeconds)}`));
    if (of.sourceRanges !== null) says.push(make("span", {}, plural(of.sourceRanges, "source range", "source ranges")));
    if (counts && counts.connectionsPerSecond === undefined) {
      says.push(make("span", {}, plural(counts.connections, "connection", "connections")));
    } else if (counts) {
      const rates = sampled(next, key, counts.connectionsPerSecond);
      says.push(make("span", {}, `${number(counts.connectionsPerSecond)} conn/s`), curve(rates, `Connections a second to ${key}`),
        make("span", {class: "wide"}, ` in ${bytes(counts.bytesInPerSecond)}, out ${bytes(counts.bytesOutPerSecond)}`));
    }
    if (mode !== "ipvs" || of.endpoints.every((endpoint) => endpoint.weight === undefined)) {
      const items = of.endpoints.map((endpoint) => make("li", {}, endpoint.address));
      if (of.leftOut) items.push(make("li", {class: "quiet"}, `and ${number(of.leftOut)} more`));
      const body = items.length ? make("ul", {}, ...items) : make("p", {class: "warn"}, "No endpoints.");
      return make("div", {}, make("table", {}, make("caption", {}, ...says)), body);
    }
    const heads = [{text: "Endpoint"}, {text: "Weight"}, {text: "Active"}, {text: "Inactive", class: "wide"}, {text: "2 min"}];
    const rows = of.endpoints.map((endpoint) => {
      const name = `${key} ${endpoint.address}`;
      const values = sampled(next, name, endpoint.active || 0);
      return [endpoint.address + (endpoint.leaving ? " (leaving)" : ""), number(endpoint.weight), number(endpoint.active),
        number(endpoint.inactive), curve(values, `Active connections of ${endpoint.address}`)];
    });
    const shown = table(says, heads, rows);
    return of.leftOut ? make("div", {}, shown, make("p", {class: "quiet"}, `and ${number(of.leftOut)} more endpoints`)) : shown;
  }

  function services(data, next) {
    const place = $("services");
    const open = new Map([...place.children].map((node) => [node.dataset.name, node.open]));
    const few = data.services.list.length <= 5;
    const focused = document.activeElement && document.activeElement.closest ? document.activeElement.closest("details") : null;
    const nodes = data.services.list.map((service) => {
      const endpoints = new Set(service.frontends.flatMap((one) => one.endpoints.map((endpoint) => endpoint.address)));
      const more = service.leftOut + service.frontends.reduce((sum, one) => sum + one.leftOut, 0);
      const none = service.frontends.some((one) => one.endpoints.length === 0);
      const rate = service.frontends.reduce((sum, one) => sum + (one.counters && one.counters.connectionsPerSecond || 0), 0);
      const counted = service.frontends.some((one) => one.counters && one.counters.connectionsPerSecond !== undefined);
      const node = make("details", {class: "card", "data-name": service.name},
        make("summary", {}, make("h3", {}, service.name),
          make("span", {class: "quiet"}, plural(service.frontends.length + service.leftOut, "frontend", "frontends")),
          make("span", {class: none ? "warn" : "quiet"},
            none && !endpoints.size ? "⚠ no endpoints" : `${none ? "⚠ " : ""}${number(endpoints.size)}${more ? "+" : ""} ${endpoints.size === 1 ? "endpoint" : "endpoints"}`),
          counted ? make("span", {class: "quiet"}, `${number(rate)} conn/s`) : null,
          counted ? curve(sampled(next, service.name, rate), `Connections a second to ${service.name}`) : null),
        ...service.frontends.map((one) => frontend(one, next, data.mode)),
        service.leftOut ? make("p", {class: "quiet"}, `and ${plural(service.leftOut, "frontend more", "frontends more")}`) : null);
      node.open = open.has(service.name) ? open.get(service.name) : few;
      return node;
    });
    place.replaceChildren(...nodes);
    const again = focused && nodes.find((node) => node.dataset.name === focused.dataset.name);
    if (again) again.querySelector("summary").focus({preventScroll: true});
    const matching = data.services.matching, last = data.services.offset + data.services.list.length;
    const range = data.services.list.length ? `${number(data.services.offset + 1)} to ${number(last)} of ` : "";
    const of = matching === data.totals.services ? plural(matching, "Service", "Services") : `${number(matching)} of ${plural(data.totals.services, "Service", "Services")}`;
    $("found").textContent = matching > data.services.list.length ? range + of : of;
    $("pages").hidden = matching <= LIMIT && offset === 0;
    for (const id of ["first", "previous"]) $(id).disabled = offset === 0;
    for (const id of ["next", "last"]) $(id).disabled = last >= matching;
    end = Math.max(0, Math.ceil(matching / LIMIT) - 1) * LIMIT;
  }

  function card(title, lines, count) {
    if (!count) return null;
    const items = lines.map((line) => make("li", {}, line));
    if (count > lines.length) items.push(make("li", {class: "quiet"}, `and ${number(count - lines.length)} more`));
    return make("div", {class: "card"}, make("h3", {}, `${title} (${number(count)})`), make("ul", {}, ...items));
  }

  function show(data) {
    const next = new Map();
    const health = data.health, known = data.services !== undefined;
    $("node").textContent = known ? data.node : "";
    document.title = known ? `${data.node} – proxier-demo` : "proxier-demo";
    const state = $("health");
    // It serves, but not all that is asked for.
    const failing = data.apiServer ? data.apiServer.failing : [];
    const moment = (text) => new Date(text).toLocaleString("en-GB");
    const lacks = (failing.length ? ["requests to the API server fail"] : []).concat(!known ? [] : [
      data.unreadable.count ? "some objects cannot be read" : null,
      data.heldBack.count || data.heldBackBecause ? "deletions are held back" : null,
      data.refused.count ? "some Services are refused" : null,
      data.rejected.count ? "parts of objects are left out" : null].filter((one) => one !== null));
    state.className = !health.healthy ? "bad" : lacks.length ? "warn" : "good";
    const late = health.pendingSeconds === null ? "" : `, work pending for ${duration(health.pendingSeconds)}`;
    const word = !health.healthy ? "✗ not healthy" : lacks.length ? `⚠ healthy, but ${lacks.join(", ")}` : "✓ healthy";
    state.textContent = `${word}${late}${health.nodeEligible ? "" : ", its Node is missing or leaving"}`;
    const busy = !known ? "A long pass is running: nothing is known yet." :
      data.age > 5 ? `A pass is running: what is below is ${duration(data.age)} old.` : "";
    $("stale").textContent = busy;
    $("stale").hidden = !busy;
    const tiles = [["Mode", data.mode]];
    if (known) {
      tiles.push(["Services", number(data.totals.services)], ["Frontends", number(data.totals.frontends)],
        ["Endpoints", number(data.totals.endpoints)],
        ["Draining", number(data.draining.count)], ["Refused", number(data.refused.count + data.rejected.count)],
        ["Held back", number(data.heldBack.count)]);
    }
    tiles.push(["API server", !data.apiServer ? "not used" : failing.length ? `⚠ since ${moment(data.apiServer.failingSince)}` : "answers"]);
    tiles.push(["Failed passes", number(health.failedPasses)]);
    if (data.lastError) tiles.push(["Last error", moment(data.lastError.time)]);
    $("tiles").replaceChildren(...tiles.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    const cards = [card(`The last pass could not${data.failures.since ? `, since ${moment(data.failures.since)}` : ""}`, data.failures.list, data.failures.count),
      data.lastError && !data.failures.count ? card(`Last error of a pass, ${moment(data.lastError.time)}`, [data.lastError.error], 1) : null,
      card("Requests to the API server fail", failing.map((one) => `${one.kind}, since ${moment(one.since)}: ${one.error}; the node keeps serving the last known state`), failing.length)];
    if (known) {
      const until = (one) => one.secondsLeft === null ? "until its object can be read, or it is confirmed" : `goes in ${duration(one.secondsLeft)}`;
      const held = data.heldBack.list.map((one) =>
        `${one.frontend}${one.service ? ` (${one.service})` : ""}, for ${duration(one.seconds)}: ${until(one)}`);
      cards.push(
        data.heldBackBecause ? make("div", {class: "card"}, make("h3", {}, "Deletions are held back"), make("p", {}, data.heldBackBecause),
          make("p", {}, "To delete them now: ", make("code", {}, `kill -USR1 ${data.process}`))) : null,
        card("Kept although they should go", held, data.heldBack.count),
        card("Not served", data.refused.list.map((one) => `${one.frontend} of ${one.service}${one.endpoint ? ` by endpoint ${one.endpoint}` : ""}: ${one.reason}`), data.refused.count),
        card("Cannot be read: what was read before stays", data.unreadable.list.map((one) => `${one.text} (for ${duration(one.seconds)})`), data.unreadable.count),
        card("Left out of objects", data.rejected.list, data.rejected.count));
    }
    const there = cards.filter((one) => one !== null);
    $("lists").replaceChildren(...there);
    $("attention").hidden = there.length === 0;
    if (known) {
      services(data, next);
      const drains = data.draining.list.map((one) => [one.virtualServer, one.realServer, number(one.connections), duration(one.seconds),
        one.secondsLeft === null ? "–" : duration(one.secondsLeft)]);
      $("draining").hidden = data.draining.count === 0;
      const heads = [{text: "Virtual server"}, {text: "Real server", class: "text"}, {text: "Connections"}, {text: "For", class: "wide"}, {text: "Ends in"}];
      $("drains").replaceChildren(make("div", {class: "card"}, table(null, heads, drains)));
    }
    const passes = data.passes.slice(0, 10).map((one) => [new Date(one.ended).toLocaleTimeString("en-GB"), one.full ? "full" : "changes",
      duration(one.seconds), number(one.changes), one.failures ? `✗ ${number(one.failures)}` : "0"]);
    const heads = [{text: "Ended"}, {text: "Kind", class: "text"}, {text: "Took"}, {text: "Changes"}, {text: "Failures"}];
    const times = data.passes.map((one) => one.seconds * 1000).reverse();
    const caption = times.length ? ["Durations ", curve(times, "Milliseconds of the last passes")] : ["None has ended yet"];
    $("passes").replaceChildren(make("div", {class: "card"}, table(caption, heads, passes)));
    history = next;
  }

  async function poll() {
    clearTimeout(timer);
    if (running) running.abort();
    const mine = running = new AbortController();
    const query = new URLSearchParams({filter: $("filter").value, offset, limit: LIMIT});
    try {
      const answer = await fetch(`status.json?${query}`, {cache: "no-store", signal: mine.signal});
      if (!answer.ok) throw new Error(`answer ${answer.status}`);
      const data = await answer.json();
      // What a person marks, to copy it, stays as long as it is marked.
      const marked = getSelection();
      if (marked && !marked.isCollapsed && document.querySelector("main").contains(marked.anchorNode)) {
        $("stale").textContent = "The page waits while text is selected.";
        $("stale").hidden = false;
      } else {
        show(data);
      }
      since = null;
    } catch (error) {
      if (mine.signal.aborted) return;
      since = since || new Date();
      $("stale").textContent = `The proxy has not answered since ${since.toLocaleTimeString("en-GB")} (${error.message}).`;
      $("stale").hidden = false;
      $("health").className = "bad";
      $("health").textContent = "✗ not reachable";
    }
    if (!document.hidden) timer = setTimeout(poll, PERIOD);
  }

  function turn(to) {
    offset = Math.max(0, to);
    poll();
  }
  let typing = 0;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => turn(0), 200); });
  $("search").addEventListener("submit", (event) => { event.preventDefault(); turn(0); });
  $("first").addEventListener("click", () => turn(0));
  $("last").addEventListener("click", () => turn(end));
  $("previous").addEventListener("click", () => turn(offset - LIMIT));
  $("next").addEventListener("click", () => turn(offset + LIMIT));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
})();
