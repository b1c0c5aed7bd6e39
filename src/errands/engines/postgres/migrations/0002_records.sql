-- Records of runs: events that are read by themselves and outlive what is trimmed around them.
-- oldest: 2
-- The code before does not know events of this kind: it would take them for news of the task, and trim them.

CREATE INDEX events_of_run ON events (task, version) WHERE kind = 'record';
