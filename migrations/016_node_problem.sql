-- What is wrong with a node, for people, such as several gateways that use its name.
alter table nodes add column problem text not null default '';
