// SPDX-License-Identifier: Apache-2.0
// Draws the figures of /overview.json every two seconds. Texts are set as text, never as markup.
"use strict";
const PERIOD_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000;
const HEIGHT = 100;

const at = (id) => document.getElementById(id);

function made(name, text = "", kind = "") {
    const element = document.createElement(name);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
}

const count = (value) => (value === null ? "-" : value.toLocaleString("en"));
const percent = (share) => `${(100 * share).toFixed(2)} %`;
const sum = (values) => values.reduce((total, one) => total + one, 0);

function about(told) {
    const since = new Date(told.started_ms).toISOString().slice(0, 19);
    const budget = told.budget ? ` of ${percent(told.budget)}` : "";
    at("about").textContent =
        `${told.version}, since ${since}Z. CPUs covered: ${told.cpus_covered} of ` +
        `${told.cpus_online}. Cost: ${percent(told.cost)}${budget}. Staging in use: ` +
        `${told.chunks - told.chunks_free} of ${told.chunks} chunks. Write errors: ` +
        `${count(told.write_errors)}.`;
}

function sessions(told) {
    at("sessions").tBodies[0].replaceChildren(...told.sessions.map((one) => {
        const row = made("tr");
        const lost = sum(Object.values(one.lost));
        const where = [
            ...Object.entries(one.lost).map(([place, number]) => `${place}: ${count(number)}`),
            ...Object.entries(one.gaps_s).map(([cause, s]) => `gap (${cause}): ${s.toFixed(1)} s`),
        ];
        row.append(
            made("td", one.name), made("td", one.source),
            made("td", one.state, one.state === "running" ? "good" : "bad"),
            made("td", one.basis), made("td", count(one.produced), "n"),
            made("td", count(one.stored), "n"), made("td", count(one.overwritten), "n"),
            made("td", count(lost), lost ? "n bad" : "n"),
            made("td", count(one.unaccounted), one.unaccounted ? "n bad" : "n"),
            made("td", where.join("; ")),
        );
        return row;
    }));
}

function troubles(told) {
    const lines = told.sessions.flatMap((one) =>
        one.degraded.map((reason) => made("li", `${one.name}: ${reason}`)));
    if (told.cpus_covered < told.cpus_online) {
        lines.push(made("li", `${told.cpus_online - told.cpus_covered} CPUs are not covered`));
    }
    at("troubles").replaceChildren(...lines);
    at("troubled").hidden = !lines.length;
}

function lane(name, ...content) {
    const line = made("div", "", "lane");
    line.append(made("div", name), ...content);
    return line;
}

function windows(told) {
    const kept = told.sessions.filter((one) => one.window_s !== null);
    at("kept").hidden = !kept.length;
    at("windows").replaceChildren(...kept.map((one) => {
        const track = made("div", "", "track");
        const share = one.keep_s ? Math.min(one.window_s / one.keep_s, 1) : 1;
        const part = made("span", "", share < 1 ? "short" : "");
        part.style.width = `${100 * share}%`;
        track.append(part);
        const promised = one.keep_s ? ` of ${one.keep_s} s` : "";
        return lane(`${one.name}: ${one.window_s.toFixed(1)} s${promised}`, track);
    }));
}

function rings(told) {
    at("rings").replaceChildren(...told.sessions.filter((one) => one.rings.length).map((one) => {
        const cells = made("div", "", "cells");
        for (const [cpu, fill, peak, lost] of one.rings) {
            const cell = made("div", "", lost ? "cell lost" : "cell");
            const shade = made("span");
            shade.style.opacity = fill;
            cell.append(shade);
            cell.title = `${cpu < 0 ? "a thread" : `CPU ${cpu}`}: ${percent(fill)} full, at most ` +
                `${percent(peak)}, ${count(lost)} lost`;
            cells.append(cell);
        }
        return lane(`${one.name}/${one.source}`, cells);
    }));
}

// The increase of a figure from each point to the next one, 0 where it begins anew.
function steps(points, name, figure) {
    return points.slice(1).map((point, index) => {
        const now = point.sessions[name], before = points[index].sessions[name];
        return now && before ? Math.max(now[figure] - before[figure], 0) : 0;
    });
}

function timeLine(told) {
    const points = told.time_line;
    const names = [...new Set(points.flatMap((point) => Object.keys(point.sessions)))];
    const from = points.length ? points[0].time_ms : 0;
    const span = Math.max(points.length ? points[points.length - 1].time_ms - from : 0, 1);
    const x = (index) => ((points[index].time_ms - from) / span) * WIDTH;
    at("line").replaceChildren(...names.map((name) => {
        const lost = steps(points, name, 0), gaps = steps(points, name, 1);
        const most = Math.max(...lost, 1);
        const drawing = document.createElementNS(SVG, "svg");
        drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
        drawing.setAttribute("preserveAspectRatio", "none");
        drawing.setAttribute("role", "img");
        gaps.forEach((ns, index) => {
            if (!ns) return;
            const bar = document.createElementNS(SVG, "rect");
            bar.setAttribute("x", x(index));
            bar.setAttribute("width", Math.max(x(index + 1) - x(index), 2));
            bar.setAttribute("height", HEIGHT);
            drawing.append(bar);
        });
        const path = document.createElementNS(SVG, "path");
        const places = lost.map((number, index) =>
            `${x(index + 1)},${HEIGHT - 2 - (number / most) * (HEIGHT - 4)}`);
        if (places.length) path.setAttribute("d", `M${places.join("L")}`);
        drawing.append(path);
        const told = `${count(sum(lost))} lost, gaps of ${(sum(gaps) / 1e9).toFixed(1)} s`;
        drawing.setAttribute("aria-label", told);
        return lane(`${name}: ${told}`, drawing);
    }));
}

function segments(told) {
    at("segments").replaceChildren(...told.sessions.flatMap((one) =>
        one.segments.length
            ? [made("dt", one.name), made("dd", one.segments.join("\n"))] : []));
}

// What is opened stays so: the list is made anew only when it is another one.
let listed = "";

function incidents(told) {
    const some = (told.incidents || []).length < told.kept_incidents ? ", the newest are below" : "";
    at("number").textContent = `Kept: ${count(told.kept_incidents)}` +
        (told.incidents === null ? ", which only clients of the host itself see." : `${some}.`);
    const now = JSON.stringify(told.incidents);
    if (now === listed) return;
    listed = now;
    const open = new Set([...document.querySelectorAll("#incidents details[open]")]
        .map((one) => one.dataset.id));
    at("incidents").replaceChildren(...(told.incidents || []).map((one) => {
        const box = made("details"), head = made("summary");
        box.dataset.id = one.id;
        const when = new Date(one.fired_ms).toISOString().slice(0, 19).replace("T", " ");
        head.append(made("code", `${when}Z ${one.trigger}`), made("span", one.reason));
        box.append(head);
        box.addEventListener("toggle", () => { if (box.open) opened(box, one); });
        box.open = open.has(one.id);
        return box;
    }));
}

async function opened(box, one) {
    if (box.childElementCount > 1) return;
    const text = made("pre", "..."), where = `/incidents/${encodeURIComponent(one.id)}`;
    box.append(made("p", `${one.id}: ${one.files.join(", ")}`, "legend"));
    if (one.is_drawn) {
        const link = made("a"), picture = made("img");
        link.href = picture.src = `${where}/flame.svg`;
        picture.alt = `Flame graph of the minute before ${one.id}`;
        link.append(picture);
        box.append(link);
    }
    box.append(text);
    try {
        const answer = await fetch(`${where}/summary`);
        text.textContent = answer.ok ? await answer.text() : "Its summary is not there yet.";
    } catch (error) {
        text.textContent = `The daemon does not answer (${error.message}).`;
    }
}

async function look() {
    try {
        const answer = await fetch("/overview.json");
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const told = await answer.json();
        for (const draw of [about, sessions, troubles, windows, rings, timeLine, incidents, segments]) {
            draw(told);
        }
        at("problem").textContent = "";
    } catch (error) {
        at("problem").textContent = `These figures are old: the daemon does not answer (${error.message}).`;
    }
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
    setTimeout(look, PERIOD_MS);
}

look();
