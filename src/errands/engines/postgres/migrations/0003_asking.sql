-- Whose answer alone a paused task waits for: `errands.model.log.Head.asks`.
-- oldest: 2

ALTER TABLE tasks ADD COLUMN asks text COLLATE "C" NOT NULL DEFAULT '';

-- Only what waits is in it, so looking for it takes no longer when there are more tasks.
CREATE INDEX tasks_asking ON tasks (status_at, id) WHERE asks <> '';

-- The release before does not know the column and leaves it as it is. Every change of state ends what was asked, so
-- this does what that release cannot; the migration that no longer allows it takes this away.
CREATE FUNCTION nobody_is_asked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.asks := '';
    RETURN NEW;
END
$$;

CREATE TRIGGER nobody_is_asked BEFORE UPDATE ON tasks FOR EACH ROW
WHEN (OLD.asks <> '' AND NEW.asks = OLD.asks AND NEW.state <> OLD.state)
EXECUTE FUNCTION nobody_is_asked();
