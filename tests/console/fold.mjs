// Folds logs as the console does: a line of JSON with a list of events comes in, a line with the task goes out.
import { createInterface } from "node:readline";

const { fold } = await import(process.argv[2]);

for await (const line of createInterface({ input: process.stdin })) {
  const { events, cuts } = JSON.parse(line);
  // In pieces, as a page receives them; what is given must not be changed.
  let task = null;
  let start = 0;
  for (const end of [...cuts, events.length]) {
    const before = JSON.stringify(task);
    const next = fold(task, events.slice(start, end));
    if (JSON.stringify(task) !== before) throw new Error("fold has changed what it was given");
    task = next;
    start = end;
  }
  process.stdout.write(`${JSON.stringify(task)}\n`);
}
