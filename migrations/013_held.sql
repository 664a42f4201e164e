-- What a site reports to hold, to be compared with what the CO remembers
-- (docs/adr/0005-positions-and-tombstones.md).
alter table sites
    add column held_epoch      bigint, -- null: the site has not reported yet
    add column held_generation bigint,
    add column held_digest     text;

-- A position that only a person may overcome is reported once, too.
drop index events_notices;
create index events_notices on events (kind, md5(message))
    where kind in ('file_ignored', 'deployment_waiting', 'site_added', 'desired_position_refused');
