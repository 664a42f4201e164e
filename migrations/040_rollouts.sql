-- Rollouts of fleet deployments (docs/adr/0017-rollouts.md). Git says what each fleet deployment is; here stands which
-- revision of it each site may have, and how far each rollout has come.

-- One row for each revision of a fleet deployment.
create table rollouts (
    fleet      text        not null,
    revision   bigint      not null, -- 1 is the first one of a fleet deployment
    digest     text        not null, -- of source
    commit     text        not null, -- of the deployments repo that made it
    app        text        not null default '', -- application id; empty where the files are refused
    app_version text       not null default '',
    source     bytea       not null, -- the files, encoded: sites that are not admitted to a later revision have this one
    state      text        not null, -- running, paused, done, aborted, superseded, refused
    wave       integer     not null default 0,
    settled_at timestamptz,          -- since when all of the wave works; null: it does not
    promoted   integer     not null default 0, -- waves that a person let pass
    forgiven   integer     not null default 0, -- failed sites that a person accepted
    reason     text        not null default '',
    by         text        not null default '', -- who paused, resumed, promoted or aborted it last
    created_at timestamptz not null default now(),
    changed_at timestamptz not null default now(),
    primary key (fleet, revision)
);
create index rollouts_open on rollouts (fleet) where state in ('running', 'paused');
create index rollouts_created on rollouts (created_at, fleet, revision);

-- One row for each site of a fleet deployment.
create table rollout_sites (
    fleet       text        not null,
    site        text        not null,
    revision    bigint      not null default 0, -- that it may have; 0: none
    wave        integer     not null default 0, -- of the latest rollout
    rank        bigint      not null default 0, -- the smaller ones are admitted first
    state       text        not null default 'waiting', -- of the latest rollout: waiting, moving, away, healthy, failed, conflict, left
    reason      text        not null default '',
    admitted_at timestamptz,
    changed_at  timestamptz not null default now(),
    groups      text[]      not null default '{}', -- that the revision names, and that the site was in when it was admitted
    next_groups text[]      not null default '{}', -- those of the latest rollout
    healthy     text[]      not null default '{}', -- digests of revisions that it ran healthily, the newest last
    primary key (fleet, site)
) with (fillfactor = 70);
create index rollout_sites_waiting on rollout_sites (fleet, wave, rank) where state = 'waiting';
create index rollout_sites_admitted on rollout_sites (fleet, admitted_at);
