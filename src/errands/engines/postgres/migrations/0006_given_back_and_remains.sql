-- Tries that were given back in good order, and logs of deleted tasks that are removed little by little.
-- oldest: 2
-- An index on a table that is in use belongs into a file of its own, as CREATE INDEX CONCURRENTLY: see docs/scaling.md.

-- `errands.model.log.Head.given_back`. The release before does not know the column and leaves it as it is: a task may
-- then be tried a few times more than it should.
ALTER TABLE tasks ADD COLUMN given_back integer NOT NULL DEFAULT 0;

-- Deleted tasks of which events and receipts are left: nobody sees those any more, and retention removes them in steps.
CREATE TABLE remains (
    task    bigint  PRIMARY KEY,
    -- Events up to this version may be left; below 0, when there are none.
    version integer NOT NULL
);
