-- The way up of machine data: how far each queue of a site has come, the messages
-- that rules store, and what is retained.

-- One row for each queue of a site. The queue of its events (lane '') has its
-- position in sites; its row here holds only what the site tells of it.
create table lanes (
    site        text    not null,
    lane        text    not null,              -- '' or data/<rule>
    epoch       text    not null default '',
    seq         bigint  not null default 0,    -- last sequence committed
    era         integer not null default 0,    -- how many epochs there were before
    left_epochs text[]  not null default '{}', -- given up, the newest last
    sweep_from  bigint  not null default 0,    -- sequence of a retained_begin without its end; 0: none
    sweep_time  bigint  not null default 0,    -- when it was written, Unix milliseconds of the site's clock
    keep_millis bigint,                        -- of stored messages; null: none was ever stored, 0: for ever
    -- What the site told last, of its queue of told_epoch.
    told_at     timestamptz,
    told_epoch  text    not null default '',
    last        bigint  not null default 0,
    bytes       bigint  not null default 0,
    oldest_ms   bigint  not null default 0,    -- age of the oldest record at told_at
    dropped     bigint  not null default 0,
    expired     bigint  not null default 0,
    rtt_us      bigint  not null default 0,
    rate        bigint  not null default 0,    -- bytes per second
    primary key (site, lane)
) with (fillfactor = 50); -- written with every batch

-- The messages of the rules that store them, one partition for each day (UTC) of
-- received_at. The CO makes partitions ahead of time and drops those of which
-- nothing is to be kept. (era, seq) is the order of a rule's messages; a message is
-- here once because its row and the position in lanes are of one transaction.
create table data_messages (
    received_at    timestamptz not null, -- the CO's clock
    site_time      timestamptz,          -- arrival at the site, by the site's clock
    seq            bigint      not null,
    era            integer     not null,
    qos            smallint    not null,
    retain         boolean     not null,
    site           text        not null,
    rule           text        not null,
    topic          text        not null, -- below colony/v1/<site>/data/
    payload        bytea       not null,
    content_type   text        not null,
    response_topic text        not null,
    correlation    bytea       not null,
    properties     text[]      not null, -- pairs of name and value
    primary key (site, rule, era, seq, received_at)
) partition by range (received_at);
create index data_messages_topic on data_messages (site, topic, received_at);
create index data_messages_received_at on data_messages using brin (received_at) with (autosummarize = on);

-- What is retained at the sites, for the CO's broker, which forgets. (epoch, seq)
-- is the message's place in the lane that brought it last.
create table data_retained (
    site           text        not null,
    topic          text        not null, -- below colony/v1/<site>/data/
    lane           text        not null,
    epoch          text        not null,
    seq            bigint      not null,
    site_time      timestamptz,
    expires_at     timestamptz,          -- the CO's clock; null: never
    qos            smallint    not null,
    payload        bytea       not null,
    content_type   text        not null,
    response_topic text        not null,
    correlation    bytea       not null,
    properties     text[]      not null,
    primary key (site, topic)
);
create index data_retained_lane on data_retained (site, lane);
create index data_retained_expires on data_retained (expires_at) where expires_at is not null;

-- Nobody asks for a move by its number alone, and each of the 50,000 a second that
-- a site may bring back after an outage would pay for the index.
alter table deployment_history drop constraint deployment_history_pkey;
