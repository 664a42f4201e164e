-- The CO's record of what should run (owned by the deployments repo) and of what
-- does run (owned by the nodes). Times are the CO's clock unless a name says site.

-- One row: epoch names this database. A CO set up anew has another one, which
-- makes the sites accept its lower generations.
create table colony (
    single boolean primary key default true check (single),
    epoch  text        not null,
    since  timestamptz not null default now()
);
insert into colony (epoch) values (gen_random_uuid()::text);

create table apps (
    id          text primary key,
    name        text        not null,
    description text        not null default '',
    latest      text        not null,
    updated_at  timestamptz not null default now()
);

-- document holds the bytes of the margo.yaml and never changes.
create table app_versions (
    app_id      text        not null references apps (id),
    version     text        not null,
    number      bigint      generated always as identity, -- order of import
    name        text        not null,
    description text        not null default '',
    source      text        not null,
    digest      text        not null,
    document    bytea       not null,
    profiles    jsonb       not null,
    parameters  jsonb       not null,
    imported_at timestamptz not null default now(),
    primary key (app_id, version)
);

create table sites (
    id             text primary key,
    created_at     timestamptz not null default now(),
    online         boolean     not null default false,
    changed_at     timestamptz,                    -- when online last changed
    session        text        not null default '',
    version        text        not null default '',
    generation     bigint      not null default 0, -- of the desired state
    desired_commit text        not null default '',
    adopted        bigint      not null default 0, -- generation that the LO reported
    journal_epoch  text        not null default '',
    journal_seq    bigint      not null default 0, -- last sequence committed
    left_epochs    text[]      not null default '{}', -- journals given up, the newest last
    gap            boolean     not null default false, -- events are missing, no snapshot came yet
    events_lost    bigint      not null default 0,
    last_event_at  timestamptz
) with (fillfactor = 50); -- written with every batch

create table nodes (
    site       text        not null references sites (id),
    id         text        not null,
    online     boolean     not null default false,
    changed_at timestamptz,
    version    text        not null default '',
    labels     jsonb       not null default '{}',
    inventory  jsonb,
    primary key (site, id)
);
create index nodes_labels on nodes using gin (labels jsonb_path_ops);

-- Compiled deployment specs by digest. Kept, because a rollback needs the old ones.
create table specs (
    digest     text primary key,
    spec       bytea       not null,
    created_at timestamptz not null default now()
);

-- desired: the deployments repo lists it, as compiled last. A row with desired
-- false is one that was just committed, one on its way out, or archived.
create table deployments (
    site            text        not null references sites (id),
    name            text        not null,
    margo_id        text        not null default '',
    app             text        not null default '',
    app_version     text        not null default '',
    profile         text        not null default '',
    commit          text        not null default '',
    desired         boolean     not null default false,
    digest          text        not null default '',
    entry           bytea,                         -- encoded protocol.SiteEntry
    problem         text        not null default '', -- why it does not compile
    placement       text        not null default '', -- why it cannot be placed
    rejected        jsonb       not null default '{}',
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    archived_at     timestamptz,
    primary key (site, name)
);
create index deployments_app on deployments (app);

create table deployment_nodes (
    site         text        not null,
    deployment   text        not null,
    node         text        not null,
    state        text        not null,
    phase        text        not null default '',
    pulled_bytes bigint      not null default 0,
    total_bytes  bigint      not null default 0,
    digest       text        not null default '',
    refused      text        not null default '',
    app_version  text        not null default '',
    attempt      bigint      not null default 0,
    code         text        not null default '',
    message      text        not null default '',
    components   jsonb       not null default '[]',
    updated_at   timestamptz not null default now(),
    primary key (site, deployment, node),
    foreign key (site, deployment) references deployments (site, name)
) with (fillfactor = 70); -- written with every report

-- Every move of every deployment on every node, in the order of recording.
create table deployment_history (
    id          bigint generated always as identity primary key,
    time        timestamptz not null default now(),
    site_time   timestamptz,
    site        text        not null,
    deployment  text        not null,
    node        text        not null,
    from_state  text        not null,
    to_state    text        not null,
    actor       text        not null,
    digest      text        not null default '',
    app_version text        not null default '',
    attempt     bigint      not null default 0,
    code        text        not null default '',
    message     text        not null default ''
);
create index deployment_history_of on deployment_history (site, deployment, id);

-- Ids become visible in order: a writer takes them under an advisory lock that it
-- holds until it commits. A reader that has seen an id has seen all below it.
create table events (
    id           bigserial primary key,
    time         timestamptz not null default now(),
    site_time    timestamptz,
    kind         text        not null,
    site         text        not null default '',
    node         text        not null default '',
    deployment   text        not null default '',
    from_state   text        not null default '',
    to_state     text        not null default '',
    phase        text        not null default '',
    pulled_bytes bigint      not null default 0,
    total_bytes  bigint      not null default 0,
    app_version  text        not null default '',
    code         text        not null default '',
    message      text        not null default ''
);
create index events_site on events (site, id);
create index events_deployment on events (site, deployment, id) where deployment <> '';

-- Reports that break the lifecycle table, and what else could not be understood.
create table anomalies (
    id            bigint generated always as identity primary key,
    time          timestamptz not null default now(),
    site          text        not null,
    node          text        not null default '',
    deployment    text        not null default '',
    kind          text        not null, -- of the journal's event
    journal_epoch text        not null default '',
    journal_seq   bigint      not null default 0,
    reason        text        not null,
    body          bytea       not null
);
create index anomalies_site on anomalies (site, id);
