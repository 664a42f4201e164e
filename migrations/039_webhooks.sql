-- How far the CO has come with the events for each webhook of its configuration: the
-- id of the last event that the receiver has accepted, or that is none for it.
create table webhooks (
  name text primary key,
  position bigint not null,
  updated_at timestamptz not null default now()
);
