-- What a person has restricted about a node, and what waits because of that, as its site reports it; null: nothing.
alter table nodes add column restrictions jsonb;
