-- What operators asked of nodes once, and what became of it.
create table commands (
    id         text        primary key,
    kind       text        not null,
    args       bytea       not null default '',    -- as the nodes get them
    arguments  jsonb,                              -- the same for people; null: the kind has none
    actor      text        not null default '',    -- whose token was shown
    created_at timestamptz not null,               -- by the CO's clock, as the deadline
    deadline   timestamptz not null,
    budget     bigint      not null default 0      -- 0: that of the kind
);
create index commands_at on commands (created_at, id);

-- A command at a site. It is published there until it has ended, and taken away then (cleared).
create table command_sites (
    command      text        not null,
    site         text        not null,
    created_at   timestamptz not null,
    deadline     timestamptz not null,
    nodes        text[]      not null default '{}', -- that are meant; empty: the selector, or every node
    selector     jsonb,
    every        boolean     not null default false,
    taken_at     timestamptz,                       -- when the site reported that it has it
    meant        bigint      not null default 0,    -- how many nodes are
    code         text        not null default '',   -- why the site refuses it
    message      text        not null default '',
    running      bigint      not null default 0,    -- rows of command_nodes by their states
    done         bigint      not null default 0,
    failed       bigint      not null default 0,
    refused      bigint      not null default 0,
    expired      bigint      not null default 0,
    unknown      bigint      not null default 0,
    withdrawn_at timestamptz,
    given_up     boolean     not null default false, -- the CO asks the site no more
    cleared      boolean     not null default false, -- the broker has nothing of it
    changed_at   timestamptz not null default now(),
    state        text        not null generated always as (case
        when code <> '' then 'refused'
        when given_up and taken_at is null then case when withdrawn_at is null then 'expired' else 'withdrawn' end
        when (taken_at is not null or cardinality(nodes) > 0) and done + failed + refused + expired + unknown >= meant then 'ended'
        when given_up then case when withdrawn_at is null then 'expired' else 'withdrawn' end
        when taken_at is not null or running + done + failed + refused + expired + unknown > 0 then 'running'
        else 'waiting' end) stored,
    primary key (command, site)
);
create index command_sites_at on command_sites (site, created_at, command);
create index command_sites_published on command_sites (site) where not cleared;
create index command_sites_changed on command_sites (changed_at) where not cleared;
create index command_sites_open on command_sites (deadline) where not given_up and state in ('waiting', 'running');

-- What became of a command on a node.
create table command_nodes (
    command text        not null,
    site    text        not null,
    node    text        not null,
    state   text        not null,
    code    text        not null default '',
    message text        not null default '',
    output  text        not null default '',
    cut     boolean     not null default false,
    millis  bigint      not null default 0,        -- how long it took
    rank    smallint    not null,                  -- 0: running; an end that the CO made: 1, that the LO made: 2, the node's: 3
    at      timestamptz not null default now(),    -- when it was recorded
    primary key (command, site, node)
);
