//! The table of live requests: slots that are reused under a new generation, so that a late message is recognised.

use super::envelope::RequestId;

/// Values by [`RequestId`].
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    /// Of the current or next occupant; never 0, so that no id is 0 on the wire.
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> RequestId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 1,
                value: None,
            });
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        place.value = Some(value);
        RequestId {
            slot,
            generation: place.generation,
        }
    }

    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let place = self.slots.get_mut(id.slot as usize)?;
        if place.generation != id.generation {
            return None;
        }
        place.value.as_mut()
    }

    pub fn remove(&mut self, id: RequestId) -> Option<T> {
        let place = self.slots.get_mut(id.slot as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        self.free.push(id.slot);
        Some(value)
    }

    /// Ids of the live values that `wanted` picks.
    pub fn ids(&self, wanted: impl Fn(&T) -> bool) -> Vec<RequestId> {
        let live = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.value.as_ref().is_some_and(&wanted));
        live.map(|(slot, s)| RequestId {
            slot: slot as u32,
            generation: s.generation,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_reused_slot_finds_nothing() {
        let mut table = Table::default();
        let old = table.insert("old");
        assert_eq!(table.remove(old), Some("old"));
        let new = table.insert("new");
        assert_eq!(new.slot, old.slot);
        assert_eq!(table.get_mut(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get_mut(new), Some(&mut "new"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn no_id_is_zero_on_the_wire_even_after_the_generations_wrap() {
        let mut table = Table::default();
        let id = table.insert(());
        assert_ne!(id.to_wire(), 0);
        table.slots[0].generation = u32::MAX;
        table.remove(RequestId {
            slot: 0,
            generation: u32::MAX,
        });
        assert_ne!(table.insert(()).to_wire(), 0);
    }
}
