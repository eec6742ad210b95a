// Shows the page again every few seconds, without what a reload would disturb: scrolling, a selected
// text, a form with values that are not sent yet, a button that is pressed. Without scripts, a page
// that has no fields reloads itself.
"use strict";

// A list whose choice is not the one of the page, or a text.
const isChanged = ({ options, selectedIndex, value, defaultValue }) =>
  options ? selectedIndex > 0 && !options[selectedIndex].defaultSelected : value !== defaultValue;

const hasChanges = (main) => [...main.querySelectorAll("input, select")].some(isChanged);

const isInUse = (main) =>
  document.hidden ||
  main.querySelector("details[open], :active") ||
  main.contains(document.activeElement) ||
  !document.getSelection().isCollapsed;

// Says that what is shown may be old.
const showStale = (main, why) => {
  if (!main.querySelector(".stale")) {
    const note = document.createElement("p");
    note.className = "stale";
    note.setAttribute("role", "status");
    note.textContent = `Not up to date since ${new Date().toLocaleTimeString()}: ${why}.`;
    main.prepend(note);
  }
};

const refresh = async () => {
  const main = document.querySelector("main");
  if (isInUse(main)) return;
  if (hasChanges(main)) return showStale(main, "a form has values that are not sent");
  try {
    const response = await fetch(location.href, { signal: AbortSignal.timeout(25000) });
    if (response.status === 401) return location.reload();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    // The notice of the last action has been read by then.
    page.querySelector(".notice")?.remove();
    const next = page.querySelector("main[data-page]");
    // For example the page of a proxy that does not reach this program.
    if (!next) throw new Error("not a page of this program");
    if (!isInUse(main) && !hasChanges(main)) main.replaceWith(next);
  } catch (error) {
    showStale(main, error.name === "TimeoutError" ? "no answer" : "job-scheduler serve cannot be reached");
  }
};

// A page of something that has ended has no interval.
const schedule = () => {
  const seconds = document.querySelector("main").dataset.refresh;
  if (seconds) setTimeout(() => refresh().finally(schedule), seconds * 1000);
};

schedule();
