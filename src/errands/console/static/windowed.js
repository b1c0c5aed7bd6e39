/**
 * Lists that mount only the rows near the screen.
 *
 * A row has the usual height until it is measured, so it may grow when it is opened. Rows that are not mounted are
 * replaced by a spacer of the same height, so the scroll bar and the anchors of the page stay correct.
 */

import { useLayoutEffect, useReducer, useRef } from "./vendor/preact.js";

/** Lists with up to this many rows are mounted completely, so that the browser can search them. */
const WHOLE = 100;
/** The pixels above and below the screen that are also mounted. */
const MARGIN = 400;

/**
 * Return the rows to mount, `first` up to `last`, and those near the screen, `from` up to `to`, with what a list needs.
 *
 * `ref` belongs to the element whose rows these are (a tbody or a list). `before` and `after` are the heights of the
 * spacers, and `measure(index)` is the ref of a row that may have another height than `usual`.
 */
export function useWindowed(count, usual, keyOf = (index) => index) {
  const ref = useRef(null);
  const heights = useRef(new Map());
  const view = useRef({ top: 0, bottom: 1200 });
  const [, redraw] = useReducer((value) => value + 1, 0);

  useLayoutEffect(() => {
    let frame = 0;
    const look = () => {
      frame = 0;
      if (!ref.current) return;
      const top = -ref.current.getBoundingClientRect().top;
      const bottom = top + window.innerHeight;
      const moved = Math.abs(top - view.current.top) > MARGIN / 2 || Math.abs(bottom - view.current.bottom) > MARGIN / 2;
      if (!moved) return;
      view.current = { top, bottom };
      redraw();
    };
    const later = () => { frame ||= requestAnimationFrame(look); };
    look();
    // Captured, because the list may be inside of an element that scrolls by itself.
    window.addEventListener("scroll", later, { capture: true, passive: true });
    window.addEventListener("resize", later);
    return () => {
      cancelAnimationFrame(frame);
      window.removeEventListener("scroll", later, { capture: true });
      window.removeEventListener("resize", later);
    };
  }, []);

  const heightOf = (index) => heights.current.get(keyOf(index)) ?? usual;
  // The rows near the screen, and the heights before, of, and after them.
  let above = 0, from = 0;
  while (from < count && above + heightOf(from) < view.current.top - MARGIN) above += heightOf(from++);
  let to = from, reached = above;
  while (to < count && reached < view.current.bottom + MARGIN) reached += heightOf(to++);
  let below = 0;
  for (let index = to; index < count; index++) below += heightOf(index);
  const isWhole = count <= WHOLE;
  const [first, last, before, after] = isWhole ? [0, count, 0, 0] : [from, to, above, below];

  const measure = (index) => (element) => {
    if (!element) return;
    const key = keyOf(index), height = element.offsetHeight;
    if (height && Math.abs(height - heightOf(index)) > 1) {
      heights.current.set(key, height);
      requestAnimationFrame(redraw);
    }
  };
  /** Scroll until the row is visible. */
  const show = (index) => {
    if (!ref.current || index < 0) return;
    let top = ref.current.getBoundingClientRect().top;
    for (let at = 0; at < index; at++) top += heightOf(at);
    if (top < 120 || top + heightOf(index) > window.innerHeight - 80) {
      window.scrollBy({ top: top - window.innerHeight / 3, behavior: "instant" });
    }
  };
  return { ref, first, last, before, after, from, to, measure, show };
}
