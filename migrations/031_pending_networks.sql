-- The network of a node that waits, so that those of one network do not take the places of others.
alter table pending_nodes add column network text not null default '';   -- see identity.Network; empty: not reported since
