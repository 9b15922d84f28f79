/* Included first in simulated code. Simulated time passes between two polls of a spin loop
 * (dd_spin_pause). A pause costs more than on real hardware; otherwise most steps of a run would be
 * polls without a result. */
#ifndef DD_SIM_SIM_PAUSE_H
#define DD_SIM_SIM_PAUSE_H

void sim_pause(void);

#define __builtin_ia32_pause() sim_pause()

#endif
