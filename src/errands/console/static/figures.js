/**
 * Rates and percentiles from the totals of a process.
 *
 * A snapshot is `{at, figures}`: a time, and samples `{name, labels, value, sum, buckets}` as the operator API has them.
 * Counters only grow, so the difference of two snapshots is what happened between them. It is negative if the process was
 * restarted.
 */

/** Rates over fewer milliseconds are not computed. */
const SHORTEST = 1500;

/** Return the sum of a metric over the samples of a snapshot that match; null if it has none. */
export function total(figures, name, labels = {}) {
  const found = (figures ?? []).filter((sample) => sample.name === name && matches(sample, labels));
  return found.length ? found.reduce((sum, sample) => sum + (sample.value ?? 0), 0) : null;
}

function matches(sample, labels) {
  return Object.entries(labels).every(([key, wanted]) => {
    const value = sample.labels?.[key];
    return Array.isArray(wanted) ? wanted.includes(value) : value === wanted;
  });
}

/** Return the largest current value of a gauge over all processes. */
export function latest(answer, name) {
  const values = replicas(answer).map((process) => total(process.figures, name)).filter((value) => value !== null);
  return values.length ? Math.max(...values) : null;
}

/** Return the processes of an answer, beginning with the one that answered. */
export function replicas(answer) {
  return answer ? [answer.process, ...answer.processes] : [];
}

/** Return a gauge at each snapshot. */
export function gauge(snapshots, name, labels) {
  return snapshots.map(({ figures }) => total(figures, name, labels));
}

/** Return how much a counter grew per second, at each snapshot but the first. */
export function rate(snapshots, name, labels) {
  return snapshots.map((snapshot, index) => {
    const before = snapshots[index - 1];
    const now = total(snapshot.figures, name, labels);
    if (!before || now === null || snapshot.at - before.at < SHORTEST) return null;
    const grown = now - (total(before.figures, name, labels) ?? 0);
    return grown < 0 ? null : grown / ((snapshot.at - before.at) / 1000);
  });
}

/** Return a percentile of a histogram at each snapshot, of what was observed in the `over` milliseconds before it. */
export function percentile(snapshots, name, share, bounds, over = 60_000) {
  let first = 0;
  return snapshots.map((snapshot, index) => {
    while (first + 1 < index && snapshots[first + 1].at <= snapshot.at - over) first += 1;
    const before = snapshots[first];
    if (before === snapshot) return null;
    const now = merged(snapshot.figures, name), then = merged(before.figures, name);
    if (!now) return null;
    const counts = now.buckets.map((count, at) => count - (then?.buckets[at] ?? 0));
    return quantile(counts, now.value - (then?.value ?? 0), share, bounds);
  });
}

function merged(figures, name) {
  const found = (figures ?? []).filter((sample) => sample.name === name && sample.buckets);
  if (!found.length) return null;
  return {
    value: found.reduce((sum, sample) => sum + sample.value, 0),
    buckets: found[0].buckets.map((_, at) => found.reduce((sum, sample) => sum + sample.buckets[at], 0)),
  };
}

/** Return the value below which a share of the observations lies, from cumulative counts; null without observations. */
export function quantile(counts, all, share, bounds) {
  if (!(all > 0) || !bounds.length) return null;
  const wanted = share * all;
  const at = counts.findIndex((count) => count >= wanted);
  if (at < 0) return bounds[bounds.length - 1];
  const below = at ? counts[at - 1] : 0, from = at ? bounds[at - 1] : 0;
  return from + (bounds[at] - from) * (counts[at] === below ? 1 : (wanted - below) / (counts[at] - below));
}
