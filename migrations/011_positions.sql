-- Desired states are ordered by a position: an epoch, then a generation. An epoch is of
-- one site, and grows where the CO was restored (docs/adr/0005-positions-and-tombstones.md).

alter table sites
    add column epoch         bigint not null default 1, -- of the site's desired state
    add column adopted_epoch bigint not null default 0; -- epoch of adopted

-- What a site shall remove is said by a tombstone, never by absence.
alter table deployments
    add column epoch          bigint  not null default 0,     -- beside generation: the position that last changed it
    add column tombstone      boolean not null default false, -- the site is to remove it
    add column remove_volumes boolean not null default false; -- with its volumes: a person asked for it

update deployments set epoch = 1 where generation > 0;
-- Those on their way out were removed by their absence. Archived ones need no tombstone.
update deployments set tombstone = true where not desired and archived_at is null and generation > 0;
