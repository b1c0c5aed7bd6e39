/** Polls while the tab is visible, and shows reads that failed. */

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { Ago } from "./words.js";

/** A slow read is repeated less often: reading takes at most this fraction, one in so many, of the time. */
const SHARE = 15;

/** Call `read` at once and then every `every` milliseconds, but only while the tab is visible, and one at a time. */
export function usePolled(read, every, keys) {
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    let timer = 0, stopped = false;
    const turn = async () => {
      clearTimeout(timer);
      if (document.hidden || stopped) return;
      const begun = performance.now();
      await latest.current();
      clearTimeout(timer);
      if (!stopped) timer = setTimeout(turn, Math.max(every, SHARE * (performance.now() - begun)));
    };
    const back = () => { if (!document.hidden) turn(); };
    turn();
    document.addEventListener("visibilitychange", back);
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", back);
    };
  }, keys);
}

/**
 * Return `{value, error, at, again}` of an address of the operator API. A read that fails keeps the value that was read
 * before, so a page shows old rows with their age and never an empty list. Without a path nothing is read.
 */
export function useRead(path, parameters = {}, every = 2000) {
  const key = path + JSON.stringify(parameters);
  const [state, setState] = useState({ key, value: null, error: null, at: 0 });
  const wanted = useRef(key);
  wanted.current = key;
  const read = async () => {
    if (!path) return;
    try {
      const value = await get(path, parameters);
      if (wanted.current === key) setState({ key, value, error: null, at: Date.now() });
    } catch (error) {
      if (wanted.current === key) setState((old) => ({ key, value: old.key === key ? old.value : null, at: old.at, error }));
    }
  };
  usePolled(read, every, [key]);
  return state.key === key ? { ...state, again: read } : { value: null, error: null, at: 0, again: read };
}

/** The error, the age of the rows that are still shown, and a button that tries again. */
export function Failure({ error, again, at = 0, what }) {
  return html`
    <div class="failure" role="alert">
      <p><b>Could not read ${what}.</b> ${error.message}</p>
      <p>${at ? html`What is shown was read <${Ago} time=${at} />. ` : ""}<button type="button" class="small" onClick=${again}>Try again</button></p>
    </div>`;
}
