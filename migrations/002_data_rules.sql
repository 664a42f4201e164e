-- The rules of the sites' machine data, as the deployments repo has them.

-- What is recorded of a site's site.yaml. A site without a row has no such file.
create table site_files (
    site    text primary key references sites (id),
    commit  text not null default '', -- the last one that changed the file
    problem text not null default ''  -- why it is not followed; the rules are then the last good ones
);

-- rule is the encoded protocol.DataRule, what the site is told. The other columns
-- are what only the CO does. A message takes the first rule that matches it.
create table data_rules (
    site        text    not null references sites (id),
    position    integer not null,
    name        text    not null,
    rule        bytea   not null,
    store       boolean not null default false,
    keep_millis bigint  not null default 0,  -- 0: for ever
    metric      text    not null default '', -- by remote write; empty: none
    fields      text[],                      -- null: the payload is the number
    primary key (site, position),
    unique (site, name)
);

-- How far each reader of stored messages has come (remote write), by rule.
create table data_readers (
    reader text    not null,
    site   text    not null,
    rule   text    not null,
    era    integer not null,
    seq    bigint  not null,
    primary key (reader, site, rule)
) with (fillfactor = 50);
