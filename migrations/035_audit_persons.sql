-- Persons for whom an OpenID provider vouches: who it is, and their identifier there, which never changes.
alter table audit add column issuer text not null default '', add column subject text not null default '';
