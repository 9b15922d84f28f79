/* Included before everything else in what is simulated: the instruction between two looks (dd_spin_pause) is a moment that passes.
 * It costs more than in the world outside, or most of a run would be looks that find nothing. */
#ifndef DD_SIM_SIM_PAUSE_H
#define DD_SIM_SIM_PAUSE_H

void sim_pause(void);

#define __builtin_ia32_pause() sim_pause()

#endif
