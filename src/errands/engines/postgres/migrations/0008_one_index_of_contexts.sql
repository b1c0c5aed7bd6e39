-- The index of contexts is no longer needed: the one of conversations begins with the same column.
-- oldest: 2
-- The release before finds the tasks of a context by that one, too; it only has to sort them.

DROP INDEX tasks_of_context;
