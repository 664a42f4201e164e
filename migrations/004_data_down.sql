-- The way down of machine data: what is queued for the sites, and what is retained
-- there on behalf of the CO's clients.

-- One row for each rule that ever had a message: the sequence never begins anew.
create table down_lanes (
    site         text        not null references sites (id),
    rule         text        not null,
    seq          bigint      not null default 0, -- given last
    sent         bigint      not null default 0, -- the highest that may have left
    acked        bigint      not null default 0, -- the highest that the site has
    queued_bytes bigint      not null default 0,
    dropped      bigint      not null default 0, -- messages dropped under a bound
    reported     bigint      not null default 0, -- those of them that an event told of
    reported_at  timestamptz,
    resync       bigint      not null default 0, -- sequence of the last retained_begin
    stale        boolean     not null default false, -- what the site retains may differ
    sender       text        not null default '', -- the replica that sends, and when it last did
    sender_at    timestamptz,
    primary key (site, rule)
) with (fillfactor = 50); -- written with every message

-- kind is that of the protocol.Event, body its encoded DataMessage.
create table down_queue (
    site       text        not null,
    rule       text        not null,
    seq        bigint      not null,
    kind       text        not null,
    body       bytea,
    size       integer     not null,
    retain     boolean     not null default false,
    volatile   boolean     not null default false, -- of use only while the link is up
    taken_at   timestamptz not null default now(),
    queued_at  timestamptz not null default now(), -- later, where what is retained is told again
    expires_at timestamptz,
    primary key (site, rule, seq)
);
create index down_queue_volatile on down_queue (site) where volatile;

-- The last retained message of each topic at the site, for a site that lost its own.
create table down_retained (
    site       text        not null,
    rule       text        not null,
    topic      text        not null,
    body       bytea       not null,
    taken_at   timestamptz not null default now(),
    expires_at timestamptz,
    primary key (site, rule, topic)
);

-- The whole desired state of a site, without specs, where it is too large for the
-- retained message, which then names it by digest. Only the latest is of use.
create table desired_bodies (
    site   text primary key references sites (id),
    digest text  not null,
    body   bytea not null
);
create index desired_bodies_digest on desired_bodies (digest);
