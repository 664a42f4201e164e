-- At which positions the record of each site was restored from a backup: what was removed since is of after that. A restore makes the table itself,
-- before the steps that the backup lacks.
create table if not exists restored_positions (
    site       text   primary key,
    epoch      bigint not null,
    generation bigint not null
);
