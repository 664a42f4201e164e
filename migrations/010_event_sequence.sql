-- Events get their ids after the commit that made them. A transaction puts its events
-- into event_outbox, in one row and without any lock that another one waits for;
-- sequence_events moves them into events under dense ids (docs/adr/0003-event-sequence.md).

create table event_outbox (
    number       bigint generated always as identity primary key,
    written_at   timestamptz   not null default now(), -- the time of events that name none
    size         integer       not null,               -- how many events: the length of each array
    time         timestamptz[] not null,
    site_time    timestamptz[] not null,
    kind         text[]        not null,
    site         text[]        not null,
    node         text[]        not null,
    deployment   text[]        not null,
    from_state   text[]        not null,
    to_state     text[]        not null,
    phase        text[]        not null,
    app_version  text[]        not null,
    code         text[]        not null,
    message      text[]        not null,
    pulled_bytes bigint[]      not null,
    total_bytes  bigint[]      not null
);
comment on table event_outbox is 'Committed events that have no id yet: a row for each transaction.';

-- One row. Its lock is what makes one sequencer of any number.
create table event_sequence (
    single boolean primary key default true check (single),
    last   bigint  not null -- the greatest id ever given; it outlives the event
);
insert into event_sequence (last) select coalesce(max(id), 0) from events;

-- An older program, which would give ids of its own, fails instead.
alter table events alter column id drop default;
drop sequence events_id_seq;

-- sequence_events gives ids to committed events, in the order of their numbers, and
-- returns how many. It stops behind the row of the outbox with which they are bound or
-- more; behind tells whether there may be others. It is run as a transaction of its own, in one
-- round trip, so that a client that hangs holds no lock. Whoever sees an id sees all
-- below it: the lock of event_sequence is held until the ids are committed.
create function sequence_events(bound integer, out sequenced bigint, out behind boolean) language plpgsql as $$
declare
    before bigint;
    upto   bigint;
begin
    sequenced := 0;
    behind := false;
    if not exists (select from event_outbox) then
        return;
    end if;
    select last into strict before from event_sequence for update;
    -- A new snapshot, taken under the lock: it has all that the sequencer before left.
    select max(number), count(*) = 1000 or coalesce(bool_or(total >= bound), false) into upto, behind from (
        select number, sum(size) over (order by number) as total, sum(size) over (order by number) - size as earlier
        from (select number, size from event_outbox order by number limit 1000) o
    ) t where earlier < bound;
    if upto is null then
        return;
    end if;
    with taken as (
        delete from event_outbox where number <= upto returning *
    )
    insert into events (id, time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message,
        pulled_bytes, total_bytes)
    select before + row_number() over (order by o.number, e.ordinality), coalesce(e.time, o.written_at), e.site_time, e.kind, e.site,
        e.node, e.deployment, e.from_state, e.to_state, e.phase, e.app_version, e.code, e.message, e.pulled_bytes, e.total_bytes
    from taken o, unnest(o.time, o.site_time, o.kind, o.site, o.node, o.deployment, o.from_state, o.to_state, o.phase, o.app_version,
        o.code, o.message, o.pulled_bytes, o.total_bytes) with ordinality
        as e (time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message, pulled_bytes,
            total_bytes, ordinality)
    order by o.number, e.ordinality;
    get diagnostics sequenced = row_count;
    update event_sequence set last = before + sequenced;
    perform pg_notify('colony_events_' || current_schema(), (before + sequenced)::text);
end
$$;
