-- Up to which commit of the deployments repo the audit has what people pushed by hand. One row, once there is a commit.
create table audit_pushed (
    one    boolean primary key default true check (one),
    commit text    not null
);
