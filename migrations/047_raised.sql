-- What the record of a site was raised above last, and where its journal was then: what follows from that alone, such as the gap of a
-- journal of which a restored record lacks events, has the event of the raise, and none of its own.
alter table sites
    add column raised_epoch bigint not null default 0,
    add column raised_generation bigint not null default 0,
    add column raised_seq bigint not null default -1, -- -1: it was not raised
    add column gap_events bigint; -- events that are missing by the last gap and that the next raise is to name; null: that gap has an event of its own

-- Whether programs may be run in containers of the site, as its file said last: it stays in force while the file is bad or missing.
alter table site_files add column exec boolean not null default false;

-- A deployment whose change is held, and of which the record is earlier than what its site holds: the site has it in neither list, and
-- keeps it as it is, until the change is held no more.
alter table deployments add column set_back boolean not null default false;
