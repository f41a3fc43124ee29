// Work in progress that its owner offers to threads which have nothing left to do: it is opened, drawn piece by piece by
// the owner and by all who join, and closed again. The owner waits only for those who joined.

#define OFFER_OPEN 0x10000u   // others may join
#define OFFER_JOINED 0xffffu  // how many did

typedef struct {
    _Atomic long next, end;        // pieces yet to draw
    _Atomic uint32_t state, left;  // `left`: how many of those who joined are done
} offer;

static inline void offer_open(offer *o, long from, long end) {
    atomic_store(&o->left, 0);
    atomic_store(&o->end, end);
    atomic_store(&o->next, from);
    atomic_store(&o->state, OFFER_OPEN);
}

// Pieces from the one returned on, `count` or as many as there are; none where it is not below the end.
static inline long offer_draw(offer *o, long count) { return atomic_fetch_add(&o->next, count); }

// Where as many pieces are left: from then on until offer_leave() the owner changes nothing of what it offers.
static inline int offer_join(offer *o, long least) {
    uint32_t state = atomic_load(&o->state);
    if (!(state & OFFER_OPEN) || atomic_load(&o->end) - atomic_load(&o->next) < least) return 0;
    return atomic_compare_exchange_strong(&o->state, &state, state + 1);
}

static inline void offer_leave(offer *o) { atomic_fetch_add(&o->left, 1); }

static inline void offer_close(offer *o) {
    uint32_t joined = atomic_fetch_and(&o->state, ~OFFER_OPEN) & OFFER_JOINED;
    for (int spins = 0; atomic_load(&o->left) != joined; spins++) pool_wait(spins);
}
