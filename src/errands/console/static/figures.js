/**
 * Rates and percentiles from the totals of a process.
 *
 * A snapshot is `{at, figures}`: a time, and samples `{name, labels, value, sum, buckets}` as the operator API has them.
 * Counters only grow, so the difference of two snapshots is what happened between them. It is negative if the process was
 * restarted.
 */

/** Rates over fewer milliseconds are not computed. */
const SHORTEST = 1500;
/** Percentiles are of so many milliseconds. */
const WINDOW = 60_000;
/** How often processes report, and for how long a report stands for its process until the next one is there. */
const STEP = 5000, HELD = 20_000;

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

/**
 * Return how much a counter grew per second at each snapshot: null where there is no such counter, and undefined where
 * that is not known, as at the first one.
 */
export function rate(snapshots, name, labels) {
  return snapshots.map((snapshot, index) => {
    const before = snapshots[index - 1];
    const now = total(snapshot.figures, name, labels);
    if (now === null) return null;
    if (!before || snapshot.at - before.at < SHORTEST) return undefined;
    const grown = now - (total(before.figures, name, labels) ?? 0);
    return grown < 0 ? undefined : grown / ((snapshot.at - before.at) / 1000);
  });
}

/** Return a percentile of a histogram at each snapshot, of what was observed in the minute before it. */
export function percentile(snapshots, name, share, bounds) {
  return observed(snapshots, name).map((one) => one && quantile(one.buckets, one.value, share, bounds));
}

/** Return how often what was observed in the minute before each snapshot, null where that is not known. */
function observed(snapshots, name) {
  let first = 0;
  return snapshots.map((snapshot, index) => {
    while (first + 1 < index && snapshots[first + 1].at <= snapshot.at - WINDOW) first += 1;
    const before = snapshots[first];
    const now = before === snapshot ? null : merged(snapshot.figures, name);
    if (!now) return null;
    const then = merged(before.figures, name);
    return { value: now.value - (then?.value ?? 0), buckets: now.buckets.map((count, at) => count - (then?.buckets[at] ?? 0)) };
  });
}

// Several processes in one chart

/** Return the times at which processes are compared: those of all their snapshots, one in five seconds at most. */
export function commonTimes(histories) {
  const times = new Set(histories.flatMap((snapshots) => snapshots.map(({ at }) => Math.ceil(at / STEP) * STEP)));
  return [...times].sort((one, other) => one - other);
}

/** Return the values of snapshots at other times: at each one the last that was known, undefined if that is too old. */
export function heldAt(times, snapshots, values) {
  let index = -1;
  return times.map((time) => {
    while (index + 1 < snapshots.length && snapshots[index + 1].at <= time) index += 1;
    return index >= 0 && time - snapshots[index].at <= HELD ? values[index] : undefined;
  });
}

/**
 * Return the sum (or the maximum, with `Math.max`) of what processes have at each time. It is null while a process ran
 * whose value is not known: a total of a part of them would look like a change.
 */
export function totalAt(times, processes, lines, combine = (one, other) => one + other) {
  return times.map((time, at) => {
    let all = null;
    for (const [index, process] of processes.entries()) {
      const value = lines[index][at];
      if (value === undefined && process.startedAt <= time && time <= process.at + HELD) return null;
      if (value !== undefined && value !== null) all = all === null ? value : combine(all, value);
    }
    return all;
  });
}

/** Return a percentile of what all processes observed in the minute before each time. */
export function percentileAt(times, histories, name, share, bounds) {
  const lines = histories.map((snapshots) => heldAt(times, snapshots, observed(snapshots, name)));
  return times.map((_, at) => {
    const known = lines.map((line) => line[at]).filter(Boolean);
    if (!known.length) return null;
    const buckets = known[0].buckets.map((_, bucket) => known.reduce((sum, one) => sum + one.buckets[bucket], 0));
    return quantile(buckets, known.reduce((sum, one) => sum + one.value, 0), share, bounds);
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
